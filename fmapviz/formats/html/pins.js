// Pointing at a channel, and pinning it enlarged beside the input.

const TWICE = 220;    // milliseconds within which two clicks are a double click

// The panes that show the same channels as one of them.
const panesLike = (pane) => panes.filter((each) => each === pane || (each.picture && pane?.picture && sameChannels(each.picture, pane.picture)));
// A number of a channel means that of the first picture that has any.
const tiledPane = () => panes.find(({ picture }) => picture?.tiles);

let pointer = null;  // the last position pointed at

function pointAgain() {
  if (pointer) point(pointer.pane, pointer.event);
}

function point(pane, event) {
  pointer = pane ? { pane, event } : null;
  pointedChannel = pane ? pane.channelUnder(event) : null;
  const pointed = panesLike(pane);
  const field = pointedChannel === null ? null : fieldUnder(pane, event);
  const value = pointedChannel === null ? "" : valueUnder(pane, event);
  showField(field);
  for (const each of panes) {
    if (pointedChannel === null || !pointed.includes(each)) each.tip.hidden = each.pointed.hidden = true;
    else each.showTip(pointedChannel, each === pane ? { field, value } : {});
    each.stage.classList.toggle("over", each === pane && pointedChannel !== null);
  }
  if (pointedChannel !== null) say([spokenNumbers(pane.picture, pointedChannel), value && `value ${value}`, field?.words].filter(Boolean).join(", "), 150);
  if (pane?.picture?.cells) pointCell(pane, event);
}

let before = null;  // the pinned channel before a click that may become a double click
let opening = 0;

// Opening the panel shrinks the picture, so it waits until a double click can be ruled out.
function click(pane, channel, clicks) {
  if (clicks === 1) before = state.channel;
  if (channel === null || clicks > 1 || !panesLike(tiledPane()).includes(pane)) return;
  state.channel = channel === state.channel ? null : channel;
  place();
  clearTimeout(opening);
  opening = setTimeout(pinned, TWICE);
}

function doubleClick() {
  clearTimeout(opening);
  state.channel = before;
  fit();
}

function pinned() {
  point(null);  // the picture may move away from under the pointer
  showPinned();
  writeAddress();
  const pane = tiledPane();
  if (state.channel !== null && pane) say(spokenNumbers(pane.picture, state.channel));
}

function pinNeighbour(by) {
  const { picture } = tiledPane() ?? {};
  if (!picture) return;
  const last = picture.tiles.count - 1;
  const at = state.channel === null ? -1 : tileOf(picture, state.channel);
  const position = at < 0 ? (by > 0 ? 0 : last) : clamp(positionOf(picture, at) + by, 0, last);
  pinChannel(channelOf(picture, picture.order?.[position] ?? position));
}

function pinChannel(channel) {
  state.channel = channel;
  pinned();
  const pane = tiledPane();
  const tile = pane ? tileOf(pane.picture, channel) : -1;
  if (tile >= 0) bringIntoView(pane, tile);
}

function bringIntoView(pane, tile) {
  const { camera } = pane;
  const { x, y, width, height } = tileBox(pane.picture, tile);
  const reach = (size, zoom) => size / zoom / 2;
  const move = (low, high, middle, half) => Math.min(0, low - (middle - half)) || Math.max(0, high - (middle + half));
  const dx = move(x, x + width, camera.x * pane.picture.width, reach(pane.stage.clientWidth, pane.zoom));
  const dy = move(y, y + height, camera.y * pane.picture.height, reach(pane.stage.clientHeight, pane.zoomDown));
  if (!camera.fitted && (dx || dy)) pane.shift(dx, dy);
  else place();
}

function unpin() {
  const focused = find("#pin").contains(document.activeElement);
  state.channel = null;
  pinned();
  if (focused) panes[0].stage.focus();  // its button is gone
}

function showPinned() {
  const panel = find("#pin");
  const shown = panesLike(tiledPane()).filter(({ picture }) => state.channel !== null && tileOf(picture, state.channel) >= 0);
  panel.hidden = !shown.length;
  showStrip(shown[0]?.picture);
  place();
  if (!shown.length) return;
  const [{ picture }] = shown;
  find("h2", panel).textContent = `${channelWord(picture)} ${state.channel}`;
  find(".where", panel).textContent = `tile ${positionOf(picture, tileOf(picture, state.channel)) + 1} of ${picture.tiles.count}`;
  const size = boxSize(shown.length * (picture.shared ? 1 : 2));
  const whole = channelOverall(picture, state.channel);
  const columns = shown.map((pane) => [comparing() ? LETTERS[pane.side] : shown.length > 1 ? pane.picture.view : "this image", tileNumbers(pane.picture, state.channel)]);
  const focused = document.activeElement?.dataset.channel;
  find(".figures", panel).replaceChildren(...shown.flatMap((pane) => pinnedFigures(pane, size, besides() && pane !== shown[0])));
  find(".said", panel).replaceChildren(numbersTable([...columns, [count(overall?.images, "image"), whole]]), deadNote(whole));
  if (focused) find(`[data-channel="${focused}"]`, panel)?.focus();
  drawFields();
}

// The panel is beside the grid if that hardly shrinks the grid, otherwise below it.
function boxSize(amount) {
  const { clientWidth: width, clientHeight: height } = find("main");
  const beside = panes.length === 1 && width >= 1000;
  find("#work").classList.toggle("beside", beside);
  if (beside) return clamp((width - height) / amount, 232, 400);
  const table = narrow.matches ? 0 : 320;
  const most = innerHeight * (!run.top ? 0.3 : narrow.matches ? 0.15 : 0.22);  // a strip is below
  return clamp(Math.min((width - 28 - table) / amount - 14, most), 72, 340);
}

function pinnedFigures(pane, size, channelAlone) {
  const { picture, unit, image } = pane;
  const box = tileBox(picture, tileOf(picture, state.channel));
  const wanted = (size * devicePixelRatio) / Math.max(box.width, box.height);
  const scale = wanted > 1 ? Math.floor(wanted) : wanted;
  const canvas = Object.assign(make("canvas"), { width: Math.round(box.width * scale), height: Math.round(box.height * scale) });
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale < 1;
  context.drawImage(image, box.x, box.y, box.width, box.height, 0, 0, canvas.width, canvas.height);
  const letter = comparing() ? `${LETTERS[pane.side]}, ` : channelAlone ? `${picture.view}, ` : "";
  const width = canvas.width / devicePixelRatio;
  const height = canvas.height / devicePixelRatio;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", visible(`${channelWord(picture)} ${state.channel} of ${unit.unit}`));
  const figures = [followPositions(figure(canvas, `${letter}${channelWord(picture).toLowerCase()}`, width, height), pane)];
  const seen = inputOf(unit);
  if (seen && !picture.shared && !channelAlone) figures.push(showFields(inputFigure(seen, unit, letter, Math.max(width, height)), pane));
  return figures;
}

// As large as the channel, in its own shape: a bar of a vector is a strip.
function inputFigure(seen, unit, letter, size) {
  const larger = Math.max(seen.width, seen.height);
  const width = (size * seen.width) / larger;
  const height = (size * seen.height) / larger;
  const input = make("img", seen.width < width ? "grown" : "");
  input.src = pictureAddress(seen.src);
  input.alt = visible(`Input of ${unit.unit}`);
  return figure(input, `${letter}input`, width, height);
}

function figure(content, caption, width, height) {
  const whole = make("figure");
  const box = make("span", "box");
  box.dataset.caption = visible(caption);
  for (const element of [content, box]) Object.assign(element.style, { width: `${width}px`, height: `${height}px` });
  box.append(content);
  whole.append(box, make("figcaption", "", caption));
  return whole;
}

// A ring marks the same position in the channel and in the input.
function cross(event) {
  const body = find(".pinned");
  const box = event.target.closest(".box");
  const inside = Boolean(box) && event.type !== "pointerleave";
  body.classList.toggle("crossed", inside);
  if (!inside) return showPosition(null);
  const bounds = box.getBoundingClientRect();
  const [across, down] = [(event.clientX - bounds.left) / bounds.width, (event.clientY - bounds.top) / bounds.height];
  moveRing(across, down);
  showPosition(box, across, down);
}

// To a position in shares of the width and height.
function moveRing(across, down) {
  find(".pinned").style.setProperty("--x", `${100 * across}%`);
  find(".pinned").style.setProperty("--y", `${100 * down}%`);
}
