// The images with the largest values of a channel: the strip of the pinned one, and the pages of all of them.

const CACHED_PAGES = 2;  // a decoded page has up to 30 MB

const pages = new Map();  // by address

function loadPage({ src }) {
  const loading = pages.get(src) ?? loadPicture(src);
  pages.delete(src);
  pages.set(src, loading);
  loading.catch(() => pages.delete(src));
  if (pages.size > CACHED_PAGES) pages.delete(pages.keys().next().value);
  return loading;
}

const unitOf = ({ href }) => run.units.find((item) => (item.steps ?? [item]).some((each) => each.href === href));
const stepOf = (item, { href }) => item.steps?.find((step) => step.href === href) ?? null;

// With the name that the image has in the report, if it is there.
function withRank(entry, at) {
  const item = unitOf(entry);
  return { ...entry, rank: at + 1, name: item ? nameAt(item, stepOf(item, entry)) : entry.name };
}

function stripOf({ name }, channel) {
  const page = topUnit?.pictures.find(({ layer, strips }) => layer.name === name && strips.channels.includes(channel));
  if (!page) return null;
  const row = page.strips.channels.indexOf(channel);
  return { page, row, remark: page.strips.remarks?.[row] ?? "", entries: page.strips.images[row].map(withRank) };
}

function pinnedStrip() {
  const { picture } = panes.find((pane) => pane.picture?.layer) ?? {};
  if (!picture || state.channel === null || goesInto(picture) || !(picture.tiles || picture.cells)) return null;
  return stripOf(picture.layer, state.channel);
}

let stripShown = null;  // the layer and channel of the strip

async function showStrip(picture) {
  const strip = find(".strip");
  const wanted = run.top && picture?.layer && !goesInto(picture) ? JSON.stringify([picture.layer.name, state.channel]) : null;
  if (wanted === stripShown) return markStrip();
  stripShown = wanted;
  if (!wanted) {
    strip.hidden = true;
    return;
  }
  strip.classList.add("loading");
  try {
    await loadTop();
    const shown = stripOf(picture.layer, state.channel);
    const image = shown?.entries.length ? await loadPage(shown.page) : null;
    if (stripShown === wanted) drawStrip(shown, image, topError);
  } catch (error) {
    if (stripShown === wanted) drawStrip(null, null, error.message);
  }
}

// Of a layer that was not ranked there is none.
function drawStrip(shown, image, error) {
  const strip = find(".strip");
  strip.classList.remove("loading");
  strip.hidden = !shown && !error;
  if (error) stripShown = null;  // retried when a channel is pinned again
  const list = find("ol", strip);
  list.hidden = !shown?.entries.length;
  list.replaceChildren(...(shown?.entries ?? []).map((entry) => drawEntry(entry, shown, image)));
  list.scrollLeft = 0;
  strip.dataset.about = visible(error ?? (shown ? aboutStrip(shown) : ""));
  describeEntry(null);
  markStrip();
  drawFields();
}

function aboutStrip({ page, remark, entries }) {
  if (!entries.length) return remark ? `None: ${remark}` : "None: the channel is constant, or has no finite value";
  return [factOf(page, "Shows").split(" of each channel")[0], remark].filter(Boolean).join(", ");
}

function entryWords(entry) {
  const absent = unitOf(entry) ? "" : "not in this report";
  return [`${entry.rank}`, entry.name, Number(entry.value.toPrecision(9)), entry.note, absent].filter((part) => part || part === 0).join(" \u00b7 ");
}

function drawEntry(entry, { page, row }, image) {
  const button = Object.assign(make("button"), { type: "button", ariaLabel: visible(`Top image ${entryWords(entry)}`) });
  button.dataset.href = entry.href;
  button.setAttribute("aria-disabled", !unitOf(entry));
  const line = make("span", "line");
  line.append(make("span", "rank", entry.rank), make("span", "value", number(entry.value)));
  const name = make("span", "name");
  name.append(make("span", "", nameParts(entry.name)[1]));
  button.append(cutTile(image, boxAt({ tiles: page.cells }, row * page.cells.columns + entry.rank - 1)), line, name);
  if (entry.note) line.append(make("span", "noted", "!"));
  button.addEventListener("click", () => openImage(entry, page.layer, page.strips.channels[row]));
  for (const type of ["pointerenter", "focus"]) button.addEventListener(type, () => describeEntry(entry));
  for (const type of ["pointerleave", "blur"]) button.addEventListener(type, () => describeEntry(null));
  const item = make("li");
  item.append(button);
  return item;
}

function cutTile(image, { x, y, width, height }) {
  const canvas = Object.assign(make("canvas"), { width, height });
  canvas.getContext("2d").drawImage(image, x, y, width, height, 0, 0, width, height);
  return canvas;
}

// In full, for the one that is pointed at or has the focus.
function describeEntry(entry) {
  const strip = find(".strip");
  find("header p", strip).textContent = entry ? visible(entryWords(entry)) : strip.dataset.about;
}

function markStrip() {
  const shown = panes.map(({ unit }) => unit?.href);
  for (const button of find(".strip").querySelectorAll("button")) {
    if (shown.includes(button.dataset.href)) button.setAttribute("aria-current", true);
    else button.removeAttribute("aria-current");
  }
}

// At the same layer. Where a picture is shown that is of no image, that of the layer is shown instead, if there is one.
function openImage(entry, layer, channel) {
  const item = unitOf(entry);
  if (!item) return say(`${entry.name} is not in this report.`);
  state.channel = channel;
  state.steps[state.side] = stepOf(item, entry)?.step ?? state.steps[state.side];
  if (known.find(isShown)?.shared) {
    const ofLayer = known.find((each) => each.layer?.name === layer.name && each.tiles && !each.shared && !goesInto(each));
    if (ofLayer) Object.assign(state, { view: ofLayer.view, name: ofLayer.name });
    else if (!comparing()) state.beside = "input";
  }
  chooseImage(item, false);
}

const channelsOn = ({ strips }) => strips && `channels ${strips.channels[0]} to ${strips.channels.at(-1)}`;

function rowBox({ cells, strips }, channel) {
  const row = cells ? strips.channels.indexOf(channel) : -1;
  if (row < 0) return null;
  const { x, y, height } = boxAt({ tiles: cells }, row * cells.columns);
  return { x, y, width: (cells.columns - 1) * cells.across + cells.width, height };
}

// A page is as wide as its pane, and begins at its top or shows the row of the pinned channel.
function rowInSight(pane, margin) {
  const zoom = (pane.scale() * pane.stretch()) / devicePixelRatio;
  const { height } = pane.picture;
  const half = pane.stage.clientHeight / zoom / 2 - margin / zoom;
  if (2 * half >= height) return 0.5;
  const row = rowBox(pane.picture, state.channel);
  return clamp(row ? row.y + row.height / 2 : 0, half, height - half) / height;
}

function cellUnder(pane, event) {
  const { cells: tiles, strips, layer } = pane.picture;
  const { x, y } = pane.pixelUnder(event);
  const position = tileAt({ tiles }, x, y);
  const row = Math.floor(position / tiles.columns);
  const rank = position % tiles.columns;
  const entry = position < 0 ? null : strips.images[row][rank];
  if (!entry) return null;
  return { entry: withRank(entry, rank), channel: strips.channels[row], layer, box: boxAt({ tiles }, position) };
}

function pointCell(pane, event) {
  const cell = cellUnder(pane, event);
  pane.stage.classList.toggle("over", Boolean(cell));
  if (!cell) return;
  const { entry, channel, box } = cell;
  pane.frame(pane.pointed, box);
  pane.tip.hidden = false;
  const lines = [entry.name, `value ${Number(entry.value.toPrecision(9))}`, entry.note].filter(Boolean);
  pane.tip.replaceChildren(make("b", "", `Channel ${channel}, image ${entry.rank}`), ...lines.map((line) => make("p", "", line)));
  pane.placeTip();
  say(`channel ${channel}, image ${entryWords(entry)}`, 150);
}

function clickCell(pane, event) {
  const cell = cellUnder(pane, event);
  if (event.detail > 1 || !cell) return;
  before = state.channel;
  clearTimeout(opening);
  opening = setTimeout(() => openImage(cell.entry, cell.layer, cell.channel), TWICE);
}
