"use strict";

// A page opened from a file may not fetch, but it may load scripts: data come as scripts that call one of these two.
const delivered = new WeakMap();
const deliver = (data) => delivered.set(document.currentScript, data);
window.fmapviz = Object.freeze({ unit: deliver, statistics: deliver });

(() => {
const KEPT_UNITS = 20;
const LARGEST_SCALE = 64;
const SETTLED = 300;  // milliseconds: browsers refuse to change the address as often as a held key repeats
const TWICE = 220;    // milliseconds in which a second click makes the first one half of a double click
const OF = {
  maps: "output", mean: "output", max: "output", pca: "output", histogram: "output",
  inputs: "input", grads: "gradient", "grad-inputs": "input gradient",
};
const SAID_ELSEWHERE = new Set(["Layer", "Type", "Shape", "Range", "Model", "Weights", "Image", "Software", "Predicted"]);
const LETTERS = ["A", "B"];

const run = JSON.parse(document.getElementById("run").textContent);
const find = (selector, root = document) => root.querySelector(selector);

/* ---- Text ---- */

// What cannot be seen, or would turn the text after it round, is shown as an escape.
const visible = (value) => String(value).replace(
  /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]/gu,
  (character) => `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`,
);

function make(tag, className = "", text = null) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== null) element.textContent = visible(text);
  return element;
}

function nameParts(unit) {
  const cut = unit.lastIndexOf("/") + 1;
  return [unit.slice(0, cut), unit.slice(cut)];
}

const number = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(5))) : "none");

function share(value) {
  const percent = value * 100;
  if (percent > 0 && percent < 0.01) return "< 0.01 %";
  if (percent < 100 && percent > 99.99) return "> 99.99 %";
  return `${Number(percent.toFixed(2))} %`;
}

const shape = (layer) => layer.shape.join(" \u00d7 ");
const words = (...parts) => parts.join(" ").toLowerCase();

let speaking = 0;
function say(text, delay = 0) {
  clearTimeout(speaking);
  speaking = setTimeout(() => { find("#spoken").textContent = visible(text); }, delay);
}

/* ---- Data ---- */

function loadScript(href) {
  return new Promise((resolve, reject) => {
    const script = make("script");
    script.src = href;
    script.onload = () => {
      script.remove();
      if (delivered.has(script)) resolve(delivered.get(script));
      else reject(new Error(`${decode(href)} is damaged: the run can be repeated or continued to write it again.`));
    };
    script.onerror = () => {
      script.remove();
      reject(new Error(`${decode(href)} cannot be read. It has to lie beside this page, where the run put it.`));
    };
    document.head.append(script);
  });
}

async function loadPicture(href) {
  const image = new Image();
  await new Promise((resolve, reject) => {
    image.onload = resolve;
    image.onerror = () => reject(new Error(`${decode(href)} cannot be read. It has to lie where the run put it.`));
    image.src = href;
  });
  await image.decode().catch(() => {});  // loaded it is; at worst it appears a moment later
  return image;
}

function decode(href) {
  try {
    return decodeURIComponent(href).replace("./", "");
  } catch {
    return href;
  }
}

// "./" keeps a name such as "javascript:x.png" a path, whatever it is encoded as.
const address = (href) => `./${href}`;
const kept = new Map();

function loadUnit(href) {
  const loading = kept.get(href) ?? loadScript(address(href) + "report.js").then((unit) => prepare(unit, href));
  kept.delete(href);
  kept.set(href, loading);  // the last one is the one used last
  loading.catch(() => kept.delete(href));  // the next look tries again
  if (kept.size > KEPT_UNITS) kept.delete(kept.keys().next().value);
  return loading;
}

function prepare(unit, href) {
  for (const picture of unit.pictures) {
    picture.src = address(href + picture.href);
    picture.words = words(picture.title || picture.name, picture.layer?.type ?? "");
  }
  return unit;
}

// Of the model itself there are no data, or one unit that is the same for all images.
let modelUnit = null;
async function loadModel() {
  if (!run.model || modelUnit) return;
  modelUnit = { pictures: [] };
  try {
    modelUnit = prepare(await loadScript(address(run.model) + "report.js"), run.model);
    for (const picture of modelUnit.pictures) picture.ofModel = true;
  } catch (error) {
    say(error.message);
  }
}

const unpacked = new WeakMap();

// Rows of little-endian float32, whatever this machine's order is.
function unpack(holder, columns) {
  if (!unpacked.has(holder)) {
    const bytes = Uint8Array.from(atob(holder.data), (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    unpacked.set(holder, (row, column) => view.getFloat32(4 * (row * columns + column), true));
  }
  return unpacked.get(holder);
}

function numbersAt(holder, columns, column) {
  const at = unpack(holder, columns);
  const [minimum, maximum, mean, deviation, zeros, strange] = [0, 1, 2, 3, 4, 5].map((row) => at(row, column));
  return { minimum, maximum, mean, deviation, zeros, strange };
}

let overall = null;  // statistics over the run

function layerOverall(picture) {
  if (!overall || !picture.layer || !OF[picture.view]) return null;
  const behind = picture.name.replace(/^\d+ /, "").slice(picture.layer.name.length);  // ".top1", of a class
  const of = OF[picture.view] + behind.replace(".", " ");
  return overall.layers.find((layer) => layer.name === picture.layer.name && (layer.of === of || layer.of === OF[picture.view])) ?? null;
}

/* ---- Tiles ---- */

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

// A table of one column for each [heading, numbers]; those without numbers are left out.
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

const count = (amount, noun) => `${amount} ${noun}${amount === 1 ? "" : "s"}`;

function spokenNumbers(picture, channel) {
  const numbers = tileNumbers(picture, channel);
  if (!numbers) return `channel ${channel}`;
  const { minimum, maximum, mean, zeros, strange } = numbers;
  const rest = strange > 0 ? `, not finite ${share(strange)}` : "";
  return `channel ${channel}: minimum ${number(minimum)}, maximum ${number(maximum)}, mean ${number(mean)}, zeros ${share(zeros)}${rest}`;
}

/* ---- Lists: only the rows in view exist ---- */

class List {
  constructor(root, { row, noun, draw, mark, choose }) {
    Object.assign(this, { root, rowHeight: row, noun, draw, mark, choose });
    this.items = this.shown = [];
    this.selected = null;
    this.drawn = new Map();
    this.box = find(".rows", root);
    this.reel = find(".reel", root);
    this.filter = find("input[type=search]", root);
    this.toggle = find("h2 button", root);
    root.style.setProperty("--row", `${row}px`);
    this.listen();
  }

  listen() {
    this.box.addEventListener("scroll", () => this.render());
    new ResizeObserver(() => this.render()).observe(this.box);
    this.reel.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) this.choose(this.shown[row.dataset.index], event.shiftKey);
      if (row && narrow.matches) this.expand(false);
    });
    this.filter.addEventListener("input", () => this.sift());
    this.toggle.addEventListener("click", () => this.expand(this.toggle.getAttribute("aria-expanded") !== "true"));
  }

  expand(open) {
    this.toggle.setAttribute("aria-expanded", open);
    find(".body", this.root).hidden = !open;
    if (open) this.reveal();
  }

  setItems(items) {
    this.items = items;
    this.drawn.clear();
    this.reel.replaceChildren();
    this.sift();
  }

  sift() {
    const wanted = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = this.items.filter((item) => wanted.every((word) => item.words.includes(word)));
    this.box.hidden = !this.shown.length;
    const none = find(".none", this.root);
    none.hidden = this.shown.length > 0;
    none.textContent = this.items.length ? `No ${this.noun} matches.` : `No ${this.noun}s.`;
    const { length } = this.shown;
    find(".count", this.root).textContent = length === this.items.length ? length : `${length} of ${this.items.length}`;
    this.reel.style.height = `${length * this.rowHeight}px`;
    this.reveal();
  }

  select(item) {
    this.selected = item;
    find(".current", this.root).textContent = item ? visible(item.unit ?? (item.title || item.name)) : "";
    this.reveal();
  }

  // Scrolls as little as it takes to show the selected row.
  reveal() {
    const top = this.shown.indexOf(this.selected) * this.rowHeight;
    if (top >= 0) {
      const lowest = top + this.rowHeight - this.box.clientHeight;
      if (this.box.clientHeight) this.box.scrollTop = Math.min(top, Math.max(lowest, this.box.scrollTop));
    }
    this.render();
  }

  render() {
    const first = Math.floor(this.box.scrollTop / this.rowHeight);
    const last = Math.min(this.shown.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / this.rowHeight));
    const rows = new Map();
    for (let index = first; index < last; index += 1) {
      const item = this.shown[index];
      rows.set(item, this.place(this.drawn.get(item) ?? this.create(item), item, index));
    }
    for (const [item, row] of this.drawn) if (!rows.has(item)) row.remove();
    this.drawn = rows;
    // Rows that stay are left where they are: to move one would load its thumbnail anew in some browsers.
    let next = this.reel.firstChild;
    for (const row of rows.values()) {
      if (row === next) next = next.nextSibling;
      else this.reel.insertBefore(row, next);
    }
    const active = rows.get(this.selected);
    if (active) this.box.setAttribute("aria-activedescendant", active.id);
    else this.box.removeAttribute("aria-activedescendant");
  }

  create(item) {
    const row = make("div", "row");
    row.setAttribute("role", "option");
    this.draw(item, row);
    return row;
  }

  place(row, item, index) {
    row.id = `${this.root.id}-${index}`;
    row.dataset.index = index;
    row.style.transform = `translateY(${index * this.rowHeight}px)`;
    row.setAttribute("aria-selected", item === this.selected);
    row.setAttribute("aria-setsize", this.shown.length);
    row.setAttribute("aria-posinset", index + 1);
    this.mark?.(row, item);
    return row;
  }

  step(by) {
    if (!this.shown.length) return;
    const at = this.shown.indexOf(this.selected);
    const to = at < 0 ? (by > 0 ? 0 : this.shown.length - 1) : at + by;
    this.choose(this.shown[Math.min(Math.max(to, 0), this.shown.length - 1)], false);
  }

  page() {
    return Math.max(1, Math.floor(this.box.clientHeight / this.rowHeight) - 1);
  }
}

/* ---- Panes: a picture that can be zoomed and moved ---- */

// What all panes show of their picture. `scale`: device pixels to a pixel of the first picture; `x`, `y`: which point of the
// picture is in the middle of the pane, as a share of its width and height.
const camera = { scale: 1, x: 0.5, y: 0.5, fitted: true };
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

class Pane {
  constructor(side) {
    this.side = side;
    this.root = find("#pane").content.firstElementChild.cloneNode(true);
    this.stage = find(".stage", this.root);
    this.image = find(".stage img", this.root);
    this.message = find(".message", this.root);
    this.tip = find(".tip", this.root);
    this.pointed = find(".outline.pointed", this.root);
    this.kept = find(".outline.kept", this.root);
    this.picture = null;
    this.fingers = new Map();
    this.listen();
  }

  listen() {
    const { stage } = this;
    stage.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    stage.addEventListener("pointerdown", (event) => this.press(event));
    stage.addEventListener("pointermove", (event) => this.move(event));
    for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, (event) => this.release(event));
    stage.addEventListener("pointerleave", () => point(null));
    stage.addEventListener("click", (event) => this.travelled < 4 && click(this.channelUnder(event), event.detail));
    stage.addEventListener("dblclick", () => doubleClick());
    find(".side", this.root).addEventListener("click", () => changeSide(this.side));
    new ResizeObserver(() => (camera.fitted ? fit() : place())).observe(stage);
  }

  show({ unit, picture, image, error }, alone) {
    this.picture = picture ?? null;
    this.unit = unit;
    this.image.hidden = !picture;
    this.message.hidden = !error;
    this.message.textContent = error ?? "";
    if (image) this.swap(image);
    this.stage.setAttribute("aria-label", visible(picture ? `Picture ${picture.title || picture.name} of ${unit.unit}` : "No picture"));
    this.caption(alone);
  }

  swap(image) {
    image.draggable = false;
    image.alt = "";
    image.style.width = `${this.picture.width}px`;
    image.style.height = `${this.picture.height}px`;
    this.image.replaceWith(image);
    this.image = image;
  }

  caption(alone) {
    const { unit, picture } = this;
    const [folder, name] = nameParts(unit?.unit ?? "");
    find("h3", this.root).textContent = visible(picture?.ofModel ? "The model, whatever the image" : folder + name);
    find(".predictions", this.root).textContent = picture?.ofModel ? "" : visible((unit?.predictions ?? []).slice(0, 3).join(" \u00b7 "));
    find(".range", this.root).textContent = alone || !picture ? "" : visible(factOf(picture, "Range"));
    const notices = find(".notices", this.root);
    notices.hidden = !unit?.notices?.length;
    notices.textContent = (unit?.notices ?? []).map(visible).join("\n");
    const side = find(".side", this.root);
    side.textContent = LETTERS[this.side];
    side.setAttribute("aria-label", `Image ${LETTERS[this.side]}: choose this one`);
    side.setAttribute("aria-pressed", this.side === state.side);
  }

  // Device pixels to a pixel of this picture: panes show pictures of different sizes equally large.
  scale() {
    const reference = panes.find((pane) => pane.picture).picture;
    return (camera.scale * reference.width) / this.picture.width;
  }

  place() {
    if (!this.picture) return;
    const ratio = devicePixelRatio;
    const bounds = this.stage.getBoundingClientRect();
    const { width, height } = this.picture;
    const scale = this.scale();
    // On whole device pixels, or the squares that pixels have become would differ in size.
    const snap = (offset, origin) => Math.round((origin + offset) * ratio) / ratio - origin;
    this.zoom = scale / ratio;
    this.left = snap(bounds.width / 2 - camera.x * width * this.zoom, bounds.left);
    this.top = snap(bounds.height / 2 - camera.y * height * this.zoom, bounds.top);
    this.image.style.transform = `translate(${this.left}px, ${this.top}px) scale(${this.zoom})`;
    this.image.classList.toggle("shrunk", scale < 1);
    this.outline(this.kept, state.channel);
    this.outline(this.pointed, pointedChannel);
  }

  outline(frame, channel) {
    const tile = channel === null ? -1 : tileOf(this.picture, channel);
    frame.hidden = tile < 0;
    if (tile < 0) return;
    const { x, y, width, height } = tileBox(this.picture, tile);
    frame.style.transform = `translate(${this.left + x * this.zoom}px, ${this.top + y * this.zoom}px)`;
    frame.style.width = `${width * this.zoom}px`;
    frame.style.height = `${height * this.zoom}px`;
  }

  channelUnder(event) {
    if (!this.picture) return null;
    const bounds = this.stage.getBoundingClientRect();
    const x = (event.clientX - bounds.left - this.left) / this.zoom;
    const y = (event.clientY - bounds.top - this.top) / this.zoom;
    const tile = tileAt(this.picture, x, y);
    return tile < 0 ? null : channelOf(this.picture, tile);
  }

  // Beside the tile, so that it stays in sight; over it only where there is no room.
  showTip(channel) {
    this.outline(this.pointed, channel);
    this.tip.hidden = this.pointed.hidden;
    if (this.tip.hidden) return;
    const whole = channelOverall(this.picture, channel);
    const columns = [["here", tileNumbers(this.picture, channel)], [count(overall?.images, "image"), whole]];
    this.tip.replaceChildren(numbersTable(columns, `Channel ${channel}`), constantNote(whole));
    const bounds = this.stage.getBoundingClientRect();
    const tile = this.pointed.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const [left, right] = [tile.left - bounds.left - width - 10, tile.right - bounds.left + 10];
    const x = right + width < bounds.width ? right : Math.max(left, 4);
    const y = clamp(tile.top - bounds.top, 4, Math.max(4, bounds.height - height - 4));
    this.tip.style.transform = `translate(${x}px, ${y}px)`;
  }

  wheel(event) {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    // Browsers report a pinch on a trackpad as a turn of the wheel with ctrl, in smaller steps.
    this.zoomAt(event, Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0015)));
    point(this, event);
  }

  zoomAt({ clientX, clientY }, factor) {
    if (!this.picture) return;
    const bounds = this.stage.getBoundingClientRect();
    const [dx, dy] = [clientX - bounds.left - bounds.width / 2, clientY - bounds.top - bounds.height / 2];
    const before = this.scale() / devicePixelRatio;
    setScale(camera.scale * factor);
    const after = this.scale() / devicePixelRatio;
    this.shift(dx / before - dx / after, dy / before - dy / after);
  }

  // By pixels of the picture.
  shift(x, y) {
    camera.x = clamp(camera.x + x / this.picture.width, 0, 1);
    camera.y = clamp(camera.y + y / this.picture.height, 0, 1);
    camera.fitted = false;
    place();
  }

  press(event) {
    if (event.button !== 0 || event.target.closest(".message")) return;
    this.stage.setPointerCapture(event.pointerId);
    this.fingers.set(event.pointerId, event);
    if (this.fingers.size === 1) this.travelled = 0;
  }

  move(event) {
    const before = this.fingers.get(event.pointerId);
    if (!before) return point(this, event);
    this.travelled += Math.hypot(event.clientX - before.clientX, event.clientY - before.clientY);
    if (!this.picture || (this.travelled < 4 && this.fingers.size === 1)) return;
    this.stage.classList.add("dragged");
    const middle = (points) => ({ clientX: mean(points, "clientX"), clientY: mean(points, "clientY") });
    const spread = ([one, other]) => (other ? Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY) : 0);
    const old = [...this.fingers.values()];
    this.fingers.set(event.pointerId, event);
    const now = [...this.fingers.values()];
    const [from, to] = [middle(old), middle(now)];
    const zoom = this.scale() / devicePixelRatio;
    this.shift((from.clientX - to.clientX) / zoom, (from.clientY - to.clientY) / zoom);
    if (spread(old) > 0) this.zoomAt(to, spread(now) / spread(old));
  }

  release(event) {
    if (!this.fingers.delete(event.pointerId) || this.fingers.size) return;
    this.stage.classList.remove("dragged");
  }
}

const mean = (points, key) => points.reduce((sum, point) => sum + point[key], 0) / points.length;

function place() {
  for (const pane of panes) pane.place();
  find("#zoom output").textContent = `${Number((camera.scale * 100).toPrecision(3))} %`;
}

function setScale(scale) {
  camera.scale = clamp(scale, Math.min(1, fittingScale()) / 4, LARGEST_SCALE);
  camera.fitted = false;
}

function fittingScale() {
  const margin = 24;
  const scales = panes.filter((pane) => pane.picture).map((pane) => {
    const { width, height } = pane.picture;
    const fitting = devicePixelRatio * Math.min((pane.stage.clientWidth - margin) / width, (pane.stage.clientHeight - margin) / height);
    return fitting * camera.scale / pane.scale();
  });
  const scale = Math.max(Math.min(...scales, LARGEST_SCALE), 0.01);
  return scale > 1 ? Math.floor(scale) : scale;
}

function fit() {
  if (!panes.some((pane) => pane.picture)) return;
  Object.assign(camera, { scale: fittingScale(), x: 0.5, y: 0.5, fitted: true });
  place();
}

// Buttons and keys go from one whole number to the next, where every pixel becomes a square of the same size.
function zoomBy(direction) {
  const pane = panes.find(({ picture }) => picture);
  if (!pane || !direction) return;
  if (direction === "fit") return fit();
  const steps = [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];
  const next = direction === "in" ? steps.find((step) => step > camera.scale * 1.001) : steps.findLast((step) => step < camera.scale * 0.999);
  setScale(next ?? camera.scale);
  place();
}

/* ---- What is shown ---- */

// `units`: numbers of the images of A and, when two are compared, B; `name` and `view` identify a picture across images.
const state = { side: 0, units: [0, null], view: null, name: null, channel: null };
const panes = [new Pane(0)];
const comparing = () => state.units[1] !== null;
let pointedChannel = null;

const narrow = matchMedia("(max-width: 720px)");
const images = new List(find("#images"), { row: 52, noun: "image", draw: drawImage, mark: markImage, choose: chooseImage });
const layers = new List(find("#layers"), { row: 44, noun: "layer", draw: drawLayer, choose: (picture) => chooseLayer(picture) });

function drawImage(item, row) {
  const thumb = make("img", "thumb");
  thumb.alt = "";
  thumb.decoding = "async";
  if (item.thumbnail !== false) thumb.src = `${address(item.href)}input.png`;
  const [folder, name] = nameParts(item.unit);
  const text = make("span", "two");
  const title = make("span", "name", name);
  text.append(title, make("span", "note", [folder, item.predictions?.[0]].filter(Boolean).join(" \u00b7 ")));
  text.title = visible(item.unit);
  row.append(thumb, text);
}

function markImage(row, item) {
  const letters = comparing() ? LETTERS.filter((_, side) => state.units[side] === item.index) : [];
  find(".letter", row)?.remove();
  if (letters.length) row.append(make("span", "letter", letters.join("")));
}

function drawLayer(picture, row) {
  const { layer } = picture;
  const text = make("span", "two");
  const label = picture.title || picture.name;
  const numbered = layer && label.match(/^(\d+) (.+)$/s);
  text.append(make("span", "name", numbered ? numbered[2] : label));
  text.append(make("span", "note", layer ? `${layer.type} \u00b7 ${shape(layer)}` : `${picture.width} \u00d7 ${picture.height} pixels`));
  text.title = visible(label);
  if (layer) row.append(make("span", "number", numbered ? numbered[1] : layer.index));
  row.append(text);
  const constant = layerOverall(picture)?.constant.length;
  if (constant) row.append(Object.assign(make("span", "badge", `${constant} dead`), { title: "Channels that never vary" }));
}

function chooseImage(item, other) {
  const side = other ? 1 - state.side : state.side;
  if (other && !comparing()) return compareWith(item.index);
  state.units[side] = item.index;
  update();
}

function chooseLayer(picture) {
  Object.assign(state, { name: picture.name, view: picture.view });
  update();
}

function chooseView(view) {
  const now = known.find((picture) => isShown(picture));
  const ofView = known.filter((picture) => picture.view === view);
  const same = ofView.find((picture) => picture.name === state.name)
    ?? ofView.find((picture) => now?.layer && picture.layer?.name === now.layer.name) ?? ofView[0];
  Object.assign(state, { view, name: same.name });
  layers.filter.value = "";
  update();
}

function compareWith(index) {
  state.units[1] = index;
  state.side = 1;
  update();
}

function toggleCompare() {
  if (run.units.length < 2) return;
  if (!comparing()) return compareWith(state.units[0] + 1 < run.units.length ? state.units[0] + 1 : state.units[0] - 1);
  state.units[1] = null;
  state.side = 0;
  update();
}

function changeSide(side) {
  state.side = comparing() ? side : 0;
  update();
}

const isShown = (picture) => picture.view === state.view && picture.name === state.name;
const factOf = (picture, name) => picture.facts.find(([key]) => key === name)?.[1] ?? "";

let known = [];  // the pictures of image A, and of the model
let busy = false;
let stale = false;

// While one picture loads only the last wish is remembered: a held key loads what it shows and nothing else.
async function update() {
  // At once: the next key goes on from here, whether this is shown yet or not.
  images.select(run.units[state.units[state.side]]);
  layers.select(layers.items.find(isShown) ?? null);
  stale = true;
  if (busy) return;
  busy = true;
  find("#panes").setAttribute("aria-busy", true);
  try {
    while (stale) {
      stale = false;
      await show();
    }
    writeAddress();
  } finally {  // data that are not what they should be must not end the whole page
    busy = false;
    find("#panes").setAttribute("aria-busy", false);
  }
}

async function show() {
  const numbers = comparing() ? state.units : [state.units[0]];
  await loadModel();
  const sides = await Promise.all(numbers.map(lookUp));
  known = [...(sides[0].unit.pictures ?? []), ...(modelUnit?.pictures ?? [])].sort((one, other) => rank(one) - rank(other));
  if (state.view === null || state.name === null) chooseFirst();
  const found = await Promise.all(sides.map(findPicture));
  const same = panes.length === found.length && found.every(({ picture }, side) => sameView(picture, panes[side].picture));
  arrange(found.length);
  panes.forEach((pane, side) => pane.show(found[side], found.length === 1));
  if (same && !camera.fitted) place();
  else fit();
  describe(found);
}

// Views come in the order in which they were asked for, behind the input.
const rank = ({ view }) => (run.views ?? []).indexOf(view);

async function lookUp(index) {
  const { unit, href } = run.units[index];
  try {
    return { unit: { ...(await loadUnit(href)), unit } };
  } catch (error) {
    return { unit: { unit }, error: error.message };
  }
}

function chooseFirst() {
  const first = known.find(({ view }) => (state.view === null ? view !== "input" : view === state.view)) ?? known[0];
  if (first) Object.assign(state, { view: first.view, name: first.name });
}

async function findPicture({ unit, error }) {
  const picture = [...(unit.pictures ?? []), ...(modelUnit?.pictures ?? [])].find(isShown);
  if (!picture) {
    const missing = `${visible(unit.unit)} has no picture ${visible(state.name)} in the view ${visible(state.view)}.`;
    return { unit, error: error ? visible(error) : missing };
  }
  try {
    return { unit, picture, image: await loadPicture(picture.src) };
  } catch (failure) {
    return { unit, error: visible(failure.message) };
  }
}

// Of the same picture of another image one looks at the same place.
function sameView(picture, before) {
  return picture && before && picture.view === before.view && picture.name === before.name;
}

function arrange(amount) {
  while (panes.length > amount) panes.pop().root.remove();
  while (panes.length < amount) panes.push(new Pane(panes.length));
  // To move a pane that is there already would take the focus from it.
  for (const { root } of panes) if (!root.isConnected) find("#panes").append(root);
  document.body.classList.toggle("comparing", amount > 1);
  find("#compare").setAttribute("aria-pressed", amount > 1);
}

function describe(found) {
  showLayers();
  const { picture } = found.find((side) => side.picture) ?? {};
  const label = picture ? picture.title || picture.name : state.name ?? "";
  find("#title").textContent = visible(label);
  const range = picture && found.length === 1 ? factOf(picture, "Range") : "";
  const kind = picture?.layer ? [picture.layer.type, shape(picture.layer), range] : [picture ? `${picture.width} \u00d7 ${picture.height} pixels` : ""];
  find("#kind").textContent = kind.filter(Boolean).map(visible).join(" \u00b7 ");
  const common = new Set(run.facts.map(([name]) => name));
  // Of two images only what holds for both.
  const holds = (name, value) => found.every((side) => !side.picture || factOf(side.picture, name) === value);
  const facts = (picture?.facts ?? []).filter(([name, value]) => !SAID_ELSEWHERE.has(name) && !common.has(name) && holds(name, value));
  find("#about").replaceChildren(...facts.map(([name, value]) => {
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd", "", value));
    return pair;
  }));
  const names = found.map(({ unit }) => visible(unit.unit)).join(" and ");
  document.title = `${visible(label)} - ${names} - ${visible(run.title)}`;
  point(null);
  showPinned();
  say([`${label}, ${names}`, ...found.map(({ error }) => error)].filter(Boolean).join(". "));
}

let listed = null;  // of which pictures the list was made

function showLayers() {
  const views = [...new Set(known.map(({ view }) => view))];
  showViews(views);
  const ofView = known.filter(({ view }) => view === state.view);
  // The same rows are not made again for every image.
  const key = JSON.stringify([overall !== null, ofView.map(({ name, title, layer }) => [name, title, layer])]);
  if (key !== listed) layers.setItems(ofView);
  listed = key;
  layers.select(layers.items.find(isShown) ?? null);
}

function showViews(views) {
  const field = find("#views");
  const names = views.join("\n");
  if (field.dataset.names !== names) {
    field.dataset.names = names;
    for (const label of field.querySelectorAll("label")) label.remove();
    field.append(...views.map(viewChoice));
  }
  field.hidden = views.length < 2;
  for (const input of field.querySelectorAll("input")) input.checked = input.value === state.view;
}

function viewChoice(view) {
  const label = make("label");
  const input = make("input");
  Object.assign(input, { type: "radio", name: "view", value: view });
  input.addEventListener("change", () => chooseView(view));
  // After a click the arrow keys are to change the layer; who came by keyboard goes on choosing views with them.
  label.addEventListener("pointerup", () => setTimeout(() => layers.box.focus()));
  label.append(input, visible(view));
  return label;
}

/* ---- Pointing and pinning ---- */

function point(pane, event) {
  pointedChannel = pane ? pane.channelUnder(event) : null;
  for (const each of panes) {
    if (pointedChannel === null) each.tip.hidden = each.pointed.hidden = true;
    else each.showTip(pointedChannel);
    each.stage.classList.toggle("over", each === pane && pointedChannel !== null);
  }
  if (pointedChannel !== null) say(spokenNumbers(pane.picture, pointedChannel), 150);
}

let before = null;  // what was pinned before a click that may become a double click
let opening = 0;

// Opening the panel makes the picture smaller, so it waits until it is clear that this is not half of a double click.
function click(channel, clicks) {
  if (clicks === 1) before = state.channel;
  if (channel === null || clicks > 1) return;
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
  const pane = panes.find(({ picture }) => picture);
  if (state.channel !== null && pane) say(spokenNumbers(pane.picture, state.channel));
}

function pinNeighbour(by) {
  const pane = panes.find(({ picture }) => picture?.tiles);
  if (!pane) return;
  const at = state.channel === null ? -1 : tileOf(pane.picture, state.channel);
  const tile = at < 0 ? (by > 0 ? 0 : pane.picture.tiles.count - 1) : clamp(at + by, 0, pane.picture.tiles.count - 1);
  state.channel = channelOf(pane.picture, tile);
  pinned();
  bringIntoView(pane, tile);
}

function bringIntoView(pane, tile) {
  const { x, y, width, height } = tileBox(pane.picture, tile);
  const reach = (size, zoom) => size / zoom / 2;
  const move = (low, high, middle, half) => Math.min(0, low - (middle - half)) || Math.max(0, high - (middle + half));
  const dx = move(x, x + width, camera.x * pane.picture.width, reach(pane.stage.clientWidth, pane.zoom));
  const dy = move(y, y + height, camera.y * pane.picture.height, reach(pane.stage.clientHeight, pane.zoom));
  if (!camera.fitted && (dx || dy)) pane.shift(dx, dy);
  else place();
}

function unpin() {
  state.channel = null;
  pinned();
}

function showPinned() {
  const panel = find("#pin");
  const shown = panes.filter(({ picture }) => state.channel !== null && tileOf(picture, state.channel) >= 0);
  panel.hidden = !shown.length;
  place();
  if (!shown.length) return;
  const [{ picture }] = shown;
  find("h2", panel).textContent = `Channel ${state.channel}`;
  find(".where", panel).textContent = `tile ${tileOf(picture, state.channel) + 1} of ${picture.tiles.count}`;
  const size = boxSize(shown.length * (picture.ofModel ? 1 : 2));
  const whole = channelOverall(picture, state.channel);
  const columns = shown.map((pane) => [comparing() ? LETTERS[pane.side] : "this image", tileNumbers(pane.picture, state.channel)]);
  const figures = make("div", "figures");
  figures.append(...shown.flatMap((pane) => pinnedFigures(pane, size)));
  const said = make("div", "said");
  said.append(numbersTable([...columns, [count(overall?.images, "image"), whole]]), constantNote(whole));
  find(".pinned", panel).replaceChildren(figures, said);
}

// Where there is room the panel is beside the grid, which then stays as large as it is or nearly so; else it is below.
function boxSize(amount) {
  const { clientWidth: width, clientHeight: height } = find("main");
  const beside = !comparing() && width >= 1000;
  find("#work").classList.toggle("beside", beside);
  if (beside) return clamp((width - height) / amount, 232, 400);
  const table = narrow.matches ? 0 : 320;
  return clamp(Math.min((width - 28 - table) / amount - 14, innerHeight * 0.3), 72, 340);
}

function pinnedFigures(pane, size) {
  const { picture, unit, image } = pane;
  const box = tileBox(picture, tileOf(picture, state.channel));
  const wanted = (size * devicePixelRatio) / Math.max(box.width, box.height);
  const scale = wanted > 1 ? Math.floor(wanted) : wanted;
  const canvas = Object.assign(make("canvas"), { width: Math.round(box.width * scale), height: Math.round(box.height * scale) });
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale < 1;
  context.drawImage(image, box.x, box.y, box.width, box.height, 0, 0, canvas.width, canvas.height);
  const letter = comparing() ? `${LETTERS[pane.side]}, ` : "";
  const width = canvas.width / devicePixelRatio;
  const height = canvas.height / devicePixelRatio;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", visible(`Channel ${state.channel} of ${unit.unit}`));
  const figures = [figure(canvas, `${letter}channel`, width, height)];
  const seen = unit.pictures.find(({ view }) => view === "input");
  if (seen && !picture.ofModel) figures.push(inputFigure(seen, unit, letter, width, height));
  return figures;
}

function inputFigure(seen, unit, letter, width, height) {
  const input = make("img", seen.width < width ? "grown" : "");
  input.src = seen.src;
  input.alt = visible(`Input of ${unit.unit}`);
  return figure(input, `${letter}input`, width, height);
}

function figure(content, caption, width, height) {
  const whole = make("figure");
  const box = make("span", "box");
  for (const element of [content, box]) Object.assign(element.style, { width: `${width}px`, height: `${height}px` });
  box.append(content);
  whole.append(box, make("figcaption", "", caption));
  return whole;
}

// A ring marks the place pointed at in the channel and in the input alike.
function cross(event) {
  const body = find(".pinned");
  const box = event.target.closest(".box");
  body.classList.toggle("crossed", Boolean(box) && event.type !== "pointerleave");
  if (!box) return;
  const bounds = box.getBoundingClientRect();
  body.style.setProperty("--x", `${(100 * (event.clientX - bounds.left)) / bounds.width}%`);
  body.style.setProperty("--y", `${(100 * (event.clientY - bounds.top)) / bounds.height}%`);
}

/* ---- The address ---- */

let written = "";
let settling = 0;

function addressOf() {
  const parts = { image: run.units[state.units[0]].unit };
  if (comparing()) parts.with = run.units[state.units[1]].unit;
  Object.assign(parts, { view: state.view ?? "", layer: state.name ?? "" });
  if (state.channel !== null) parts.channel = state.channel;
  return new URLSearchParams(parts).toString();
}

// The page as it opens has no address of its own: going back to it must not need two steps.
let opened = null;

function writeAddress() {
  clearTimeout(settling);
  opened ??= addressOf();
  settling = setTimeout(() => {
    const now = addressOf();
    if (now === written || (!written && now === opened)) return;
    written = now;
    location.hash = now;
  }, SETTLED);
}

function readAddress() {
  written = location.hash.slice(1);
  const parts = new URLSearchParams(written);
  const unit = (name) => run.units.findIndex((item) => item.unit === parts.get(name));
  const other = unit("with");
  const channel = /^\d+$/.test(parts.get("channel") ?? "") ? Number(parts.get("channel")) : null;
  state.units = [Math.max(0, unit("image")), other < 0 ? null : other];
  Object.assign(state, { side: other < 0 ? 0 : state.side, view: parts.get("view") || null, name: parts.get("layer") || null, channel });
}

function followAddress() {
  if (location.hash.slice(1) === written) return;
  clearTimeout(settling);
  readAddress();
  update();
}

/* ---- Keys ---- */

const PAN = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function pan(key) {
  const pane = panes.find(({ picture }) => picture);
  if (pane) pane.shift((PAN[key][0] * 60) / pane.zoom, (PAN[key][1] * 60) / pane.zoom);
}

function escape() {
  const list = [images, layers].find(({ filter }) => filter === document.activeElement || filter.value);
  if (list) {
    list.filter.value = "";
    list.sift();
    list.box.focus();
  } else if (state.channel !== null) unpin();
  else if (comparing()) toggleCompare();
}

function focusFilter(list) {
  list.expand(true);
  list.filter.focus();
  list.filter.select();
}

function nextView() {
  const views = [...find("#views").querySelectorAll("input")].map(({ value }) => value);
  if (views.length) chooseView(views[(views.indexOf(state.view) + 1) % views.length]);
}

const KEYS = {
  ArrowUp: () => layers.step(-1), ArrowDown: () => layers.step(1),
  ArrowLeft: () => images.step(-1), ArrowRight: () => images.step(1),
  "+": () => zoomBy("in"), "=": () => zoomBy("in"), "-": () => zoomBy("out"), 0: fit,
  "[": () => pinNeighbour(-1), "]": () => pinNeighbour(1),
  "/": () => focusFilter(layers), i: () => focusFilter(images),
  c: toggleCompare, s: () => changeSide(1 - state.side), v: nextView, t: () => toggleTheme(),
  "?": () => find("#help").showModal(), Escape: escape,
};

// In a list, and in the filter above it, the keys for rows move through that list.
function listKeys(list) {
  return {
    ArrowUp: () => list.step(-1), ArrowDown: () => list.step(1),
    PageUp: () => list.step(-list.page()), PageDown: () => list.step(list.page()),
    Home: () => list.step(-list.items.length), End: () => list.step(list.items.length),
  };
}

function filterKeys(list) {
  const { ArrowUp, ArrowDown, PageUp, PageDown } = listKeys(list);
  const Enter = () => {
    if (list.shown.length && !list.shown.includes(list.selected)) list.choose(list.shown[0], false);
    list.box.focus();
  };
  return { ArrowUp, ArrowDown, PageUp, PageDown, Enter, Escape: escape };
}

function keysFor(target) {
  const list = [images, layers].find(({ root }) => root.contains(target));
  if (target === list?.filter) return filterKeys(list);
  if (target === list?.box) return { ...KEYS, ...listKeys(list) };
  if (target.matches("input[type=radio]")) return { ...KEYS, ArrowUp: null, ArrowDown: null, ArrowLeft: null, ArrowRight: null };
  return KEYS;
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || find("dialog[open]") || !run.units.length) return;
  const shifted = event.shiftKey && event.key in PAN && !event.target.matches("input");
  const act = shifted ? () => pan(event.key) : keysFor(event.target)[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

/* ---- Light and dark; dialogs ---- */

function toggleTheme() {
  const now = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  setTheme(now === "dark" ? "light" : "dark");
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("fmapviz-theme", theme);
  } catch { /* a page opened from a file may have no storage: then the choice lasts as long as the page */ }
}

function recallTheme() {
  try {
    const theme = localStorage.getItem("fmapviz-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* as above */ }
}

async function loadStatistics() {
  if (!run.statistics) return;
  try {
    overall = await loadScript(address(run.statistics));
  } catch (error) {
    find("#statistics .summary").textContent = visible(error.message);
    return;
  }
  showLayers();
  showPinned();
  showStatistics();
}

function showStatistics() {
  const dead = overall.layers.filter(({ constant }) => constant.length);
  const amount = dead.reduce((sum, { constant }) => sum + constant.length, 0);
  find("#statistics .summary").textContent = amount
    ? `${count(amount, "channel")} in ${dead.length} of ${count(overall.layers.length, "layer")} never ${amount === 1 ? "varies" : "vary"} over ${count(overall.images, "image")}.`
    : `Every channel of ${count(overall.layers.length, "layer")} varies over ${count(overall.images, "image")}.`;
  const table = make("table");
  const head = table.createTHead().insertRow();
  head.append(...["Layer", "Values", "Type", "Never vary"].map((text) => Object.assign(make("th", "", text), { scope: "col" })));
  const body = table.createTBody();
  for (const layer of overall.layers) body.append(statisticsRow(layer));
  find("#statistics .table").replaceChildren(table);
}

function statisticsRow(layer) {
  const row = make("tr");
  const go = Object.assign(make("button", "", layer.name), { type: "button" });
  go.addEventListener("click", () => goToLayer(layer));
  const dead = layer.constant.length;
  const cells = [go, layer.of, layer.type, make("span", dead ? "constant" : "", `${dead} of ${layer.channels}`)];
  for (const content of cells) {
    const cell = row.insertCell();
    cell.append(typeof content === "string" ? visible(content) : content);
  }
  return row;
}

function goToLayer(layer) {
  const picture = known.find((each) => layerOverall(each) === layer);
  find("#statistics").close();
  if (picture) chooseLayer(picture);
  else say(`There is no picture of ${layer.name} in this report.`);
}

function listenToPage() {
  addEventListener("keydown", press);
  addEventListener("hashchange", followAddress);
  find("#compare").addEventListener("click", toggleCompare);
  find("#theme").addEventListener("click", toggleTheme);
  find("#unpin").addEventListener("click", unpin);
  find("#zoom").addEventListener("click", (event) => zoomBy(event.target.closest("button")?.dataset.zoom));
  for (const button of find("#pin").querySelectorAll("[data-step]")) button.addEventListener("click", () => pinNeighbour(Number(button.dataset.step)));
  find(".pinned").addEventListener("pointermove", cross);
  find(".pinned").addEventListener("pointerleave", cross);
  addEventListener("resize", () => showPinned());
  for (const button of document.querySelectorAll("[data-dialog]")) button.addEventListener("click", () => find(`#${button.dataset.dialog}`).showModal());
  for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
}

function showNothing() {
  arrange(1);
  const why = run.failures.length ? `None of ${count(run.failures.length, "image")} could be shown: see Run for the reason of each.` : "There is no image in this report yet.";
  panes[0].show({ error: why }, true);
}

async function start() {
  recallTheme();
  listenToPage();
  find("#compare").disabled = run.units.length < 2;
  run.units.forEach((item, index) => Object.assign(item, { index, words: words(item.unit, ...(item.predictions ?? [])) }));
  if (narrow.matches) for (const list of [images, layers]) list.expand(false);
  images.setItems(run.units);
  layers.setItems([]);
  if (!run.units.length) return showNothing();
  readAddress();
  await update();
  await loadStatistics();
}

start();
})();
