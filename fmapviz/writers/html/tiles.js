// Tiles: positions of the channels in a picture, and their statistics.

const channelOf = (picture, tile) => picture.channels?.[tile] ?? tile;

function tileOf(picture, channel) {
  if (!picture?.tiles) return -1;
  if (picture.channels) return picture.channels.indexOf(channel);
  return channel < picture.tiles.count ? channel : -1;
}

function tileBox({ tiles }, tile) {
  const row = Math.floor(tile / tiles.columns);
  return { x: tiles.left + (tile % tiles.columns) * tiles.across, y: tiles.top + row * tiles.down, width: tiles.width, height: tiles.height };
}

function tileAt(picture, x, y) {
  const { tiles } = picture;
  if (!tiles) return -1;
  const column = Math.floor((x - tiles.left) / tiles.across);
  const row = Math.floor((y - tiles.top) / tiles.down);
  const within = x - tiles.left - column * tiles.across < tiles.width && y - tiles.top - row * tiles.down < tiles.height;
  const tile = row * tiles.columns + column;
  return within && column >= 0 && column < tiles.columns && row >= 0 && tile < tiles.count ? tile : -1;
}

function tileNumbers(picture, channel) {
  const tile = tileOf(picture, channel);
  return tile >= 0 && picture.statistics ? numbersAt(picture.statistics, picture.tiles.count, tile) : null;
}

function channelOverall(picture, channel) {
  const layer = layerOverall(picture);
  return layer && channel < layer.channels ? { ...numbersAt(layer, layer.channels, channel), constant: layer.constant.includes(channel) } : null;
}

const MEASURES = [
  ["minimum", number], ["maximum", number], ["mean", number], ["deviation", number], ["zeros", share], ["strange", share],
];
const MEASURE_NAMES = { strange: "not finite" };

// A table with a column for each [heading, numbers]; columns without numbers are left out.
function numbersTable(columns, caption) {
  const shown = columns.filter(([, numbers]) => numbers);
  const table = make("table", "numbers");
  if (caption) table.createCaption().append(make("b", "", caption));
  if (shown.length > 1 || columns.length > 2) {
    const head = table.createTHead().insertRow();
    head.append(make("td"), ...shown.map(([heading]) => Object.assign(make("th", "", heading), { scope: "col" })));
  }
  const body = table.createTBody();
  for (const [key, format] of shown.length ? MEASURES : []) {
    if (key === "strange" && !shown.some(([, numbers]) => numbers.strange > 0)) continue;
    const row = body.insertRow();
    row.append(Object.assign(make("th", "", MEASURE_NAMES[key] ?? key), { scope: "row" }));
    for (const [, numbers] of shown) row.append(make("td", "", format(numbers[key])));
  }
  return table;
}

function constantNote(numbers) {
  return numbers?.constant ? make("p", "constant", `Never varies, over ${count(overall.images, "image")}`) : "";
}

// A tile of a convolution's weights is a filter, which computes a channel.
function channelWord(picture) {
  return picture.view === "kernels" ? "Filter" : "Channel";
}

function spokenNumbers(picture, channel) {
  const numbers = tileNumbers(picture, channel);
  const word = channelWord(picture).toLowerCase();
  if (!numbers) return `${word} ${channel}`;
  const { minimum, maximum, mean, zeros, strange } = numbers;
  const rest = strange > 0 ? `, not finite ${share(strange)}` : "";
  return `${word} ${channel}: minimum ${number(minimum)}, maximum ${number(maximum)}, mean ${number(mean)}, zeros ${share(zeros)}${rest}`;
}
