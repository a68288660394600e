// @ts-check
// A pane: a picture that can be zoomed, moved and pointed at.

import { newCamera, place, refit, setScale } from "./camera.js";
import { channelTable } from "./channel_table.js";
import { besideView, changeSide, chooseBeside } from "./choose.js";
import { click, doubleClick, point } from "./pins.js";
import { report } from "./registry.js";
import { besides, comparing, labelOf, panes, pointer, state, swiping, viewLabel, viewsShown } from "./state.js";
import { hasSeries } from "./steps.js";
import { around, clamp, count, cutName, factOf, factPair, find, LETTERS, paired, run, visible } from "./text.js";
import {
  channelOf, channelOverall, channelWord, deadNote, statistics, tileAt, tileBox, tileNumbers, tileOf,
} from "./tiles.js";
import { valueNote } from "./values.js";

/** @import { Box, Found, Image, Numbers, Picture, Position, Unit } from "./page.d.ts" */

export class Pane {
  /** @param {number} side */
  constructor(side) {
    this.side = side;
    /** @type {HTMLTemplateElement} */
    const template = find("#pane");
    this.root = /** @type {HTMLElement} */ (template.content.firstElementChild.cloneNode(true));
    this.viewport = find(".viewport", this.root);
    /** @type {Image} */
    this.image = find(".viewport > img", this.root);
    this.message = find(".message", this.root);
    this.tip = find(".tip", this.root);
    this.pointed = find(".outline.pointed", this.root);
    this.kept = find(".outline.kept", this.root);
    /** @type {HTMLSelectElement} */
    this.besideChoice = find(".beside-view", this.root);
    /** @type {Picture | null} */
    this.picture = null;
    /** @type {Unit | undefined} */
    this.unit = undefined;
    /** @type {[string, string][]} */
    this.own = [];
    this.camera = this.ownCamera = newCamera();
    this.active = false;
    /** @type {Map<number, PointerEvent>} */
    this.fingers = new Map();
    this.travelled = 0;
    // The picture's position in its viewport, and CSS pixels per pixel of the picture.
    this.left = this.top = 0;
    this.zoom = this.zoomDown = 1;
    this.listen();
  }

  listen() {
    const { viewport } = this;
    viewport.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    viewport.addEventListener("pointerdown", (event) => this.press(event));
    viewport.addEventListener("pointermove", (event) => this.move(event));
    viewport.addEventListener("pointerup", (event) => this.release(event));
    viewport.addEventListener("pointercancel", (event) => this.release(event));
    viewport.addEventListener("pointerleave", () => point(null));
    viewport.addEventListener("click", (event) => {
      if (this.travelled >= 4) return;
      click(this, event);
    });
    viewport.addEventListener("dblclick", () => doubleClick());
    viewport.addEventListener("focus", () => this.activate());
    find(".side", this.root).addEventListener("click", () => changeSide(this.side));
    this.besideChoice.addEventListener("change", () => chooseBeside(this.besideChoice.value));
    new ResizeObserver(() => (this.camera.fitted ? refit() : place())).observe(viewport);
  }

  activate() {
    for (const pane of panes) pane.active = pane === this;
    place();
  }

  /** @param {Found} found */
  show({ unit, picture, image, error, own }) {
    this.picture = picture ?? null;
    this.unit = unit;
    this.own = own;
    this.image.toggleAttribute("hidden", !picture);
    this.message.hidden = !error;
    this.message.textContent = error ?? "";
    if (image) this.swap(image);
    this.viewport.setAttribute("aria-label", visible(picture ? `Picture ${picture.title || picture.name} of ${unit.unit}${paired ? ` in ${run.runs[this.side].name}` : ""}` : "No picture"));
    this.caption();
  }

  // The caption below a heat map is cut off: two pictures do not share its area, and the facts repeat it.
  /** @param {Image} image */
  swap(image) {
    if (image.tagName === "IMG") Object.assign(image, { draggable: false, alt: "" });
    image.style.width = `${this.picture.width}px`;
    image.style.height = `${this.picture.height}px`;
    this.image.replaceWith(image);
    this.image = image;
  }

  // The second of two pictures of one image names its view instead of the image.
  caption() {
    const { unit, picture } = this;
    const heading = find("h3", this.root);
    const second = besides() && this.side === 1;
    if (report.pairing) return report.pairing.caption(this);
    const label = second ? (picture?.layer ? labelOf(picture) : "") : unit?.unit ?? "";
    heading.title = visible(label);
    heading.hidden = !label;
    if (picture?.shared && !second) heading.textContent = picture.shared;
    else heading.replaceChildren(...cutName(label));
    this.describe(picture?.shared || second ? [] : unit?.predictions ?? []);
    this.besideChoice.hidden = !second;
    if (second) fillBeside(this.besideChoice);
    const side = find(".side", this.root);
    side.textContent = LETTERS[this.side];
    side.setAttribute("aria-label", `Image ${LETTERS[this.side]}: choose this one`);
    side.setAttribute("aria-pressed", String(this.side === state.side));
  }

  /** @param {string[]} predictions */
  describe(predictions) {
    const { unit, picture, own } = this;
    const second = besides() && this.side === 1;
    find(".predictions", this.root).textContent = visible(predictions.slice(0, 3).join(" \u00b7 "));
    find(".range", this.root).textContent = panes.length > 1 && picture ? visible(factOf(picture, "Range")) : "";
    find(".own", this.root).replaceChildren(...own.map(([name, value]) => factPair(name, value)));
    find(".own", this.root).hidden = !own.length && !(comparing() && hasSeries);  // steps may differ in facts or not
    this.notify(".notices", [...(second ? [] : unit?.notices ?? []), ...(picture?.layer ? picture.notices ?? [] : [])]);
    this.notify(".remarks", picture && !picture.layer ? picture.notices ?? [] : []);
  }

  /** @type {(selector: string, notices: string[]) => void} */
  notify(selector, notices) {
    const place = find(selector, this.root);
    place.hidden = !notices.length;
    place.textContent = notices.map(visible).join("\n");
  }

  // Device pixels per pixel of this picture: panes show pictures of different sizes equally large.
  scale() {
    return (this.camera.scale * this.reference().width) / this.picture.width;
  }

  // When two pictures lie over each other, the second one is stretched to the box of the first.
  stretch() {
    const { width, height } = this.reference();
    return swiping() ? (height * this.picture.width) / (width * this.picture.height) : 1;
  }

  reference() {
    return panes.find((pane) => pane.picture && pane.camera === this.camera).picture;
  }

  place() {
    if (!this.picture) return;
    const ratio = devicePixelRatio;
    const bounds = this.viewport.getBoundingClientRect();
    const { width, height } = this.picture;
    const { camera } = this;
    const scale = this.scale();
    // Aligned to device pixels; otherwise enlarged pixels would differ in size. Two pictures in one box are rounded equally.
    /** @type {(offset: number, origin: number) => number} */
    const snap = (offset, origin) => Math.round(Number(((origin + offset) * ratio).toFixed(4))) / ratio - origin;
    this.zoom = scale / ratio;
    this.zoomDown = this.zoom * this.stretch();
    this.left = snap(bounds.width / 2 - camera.x * width * this.zoom, bounds.left);
    this.top = snap(bounds.height / 2 - camera.y * height * this.zoomDown, bounds.top);
    this.image.style.transform = `translate(${this.left}px, ${this.top}px) scale(${this.zoom}, ${this.zoomDown})`;
    this.image.classList.toggle("shrunk", scale < 1);
    this.outline(this.kept, state.channel);
    this.outline(this.pointed, pointer.channel);
  }

  /** @type {(frame: HTMLElement, channel: number | null) => void} */
  outline(frame, channel) {
    const tile = channel === null ? -1 : tileOf(this.picture, channel);
    this.frame(frame, tile < 0 ? this.picture.behaviour?.outline(this.picture, channel) : tileBox(this.picture, tile));
  }

  /** @type {(frame: HTMLElement, box: Box | null | undefined) => void} */
  frame(frame, box) {
    frame.hidden = !box;
    if (!box) return;
    const { x, y, width, height } = box;
    frame.style.transform = `translate(${this.left + x * this.zoom}px, ${this.top + y * this.zoomDown}px)`;
    frame.style.width = `${width * this.zoom}px`;
    frame.style.height = `${height * this.zoomDown}px`;
  }

  // In pixels of the picture.
  /** @param {Position} event */
  pixelUnder(event) {
    const bounds = this.viewport.getBoundingClientRect();
    return { x: (event.clientX - bounds.left - this.left) / this.zoom, y: (event.clientY - bounds.top - this.top) / this.zoomDown };
  }

  /** @param {Position} event */
  channelUnder(event) {
    if (!this.picture) return null;
    const { x, y } = this.pixelUnder(event);
    const tile = tileAt(this.picture, x, y);
    return tile < 0 ? null : channelOf(this.picture, tile);
  }

  /** @type {(channel: number, about: { value?: string, notes?: Node[] }) => void} */
  showTip(channel, { value = "", notes = [] }) {
    this.outline(this.pointed, channel);
    this.tip.hidden = this.pointed.hidden;
    if (this.tip.hidden) return;
    // Two pictures over each other have one tip, for the one under the pointer.
    this.tip.hidden = swiping() && pointer.pane !== this;
    if (this.tip.hidden) return;
    const whole = channelOverall(this.picture, channel);
    /** @type {[string, Numbers | null][]} */
    const columns = [["here", tileNumbers(this.picture, channel)], [count(statistics.overall?.images, "image"), whole]];
    this.tip.replaceChildren(channelTable(columns, `${channelWord(this.picture)} ${channel}`), valueNote(value), deadNote(whole), ...notes);
    this.placeTip();
  }

  // Beside the tile, which stays visible, or over it if there is no room.
  placeTip() {
    const bounds = this.viewport.getBoundingClientRect();
    const tile = this.pointed.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const [left, right] = [tile.left - bounds.left - width - 10, tile.right - bounds.left + 10];
    const x = right + width < bounds.width ? right : Math.max(left, 4);
    const y = clamp(tile.top - bounds.top, 4, Math.max(4, bounds.height - height - 4));
    this.tip.style.transform = `translate(${x}px, ${y}px)`;
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    // Browsers report a trackpad pinch as wheel events with Ctrl, in smaller steps.
    this.zoomAt(event, Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0015)));
    point(this, event);
  }

  /** @type {(position: Position, factor: number) => void} */
  zoomAt({ clientX, clientY }, factor) {
    if (!this.picture) return;
    const bounds = this.viewport.getBoundingClientRect();
    const [dx, dy] = [clientX - bounds.left - bounds.width / 2, clientY - bounds.top - bounds.height / 2];
    const before = this.scale() / devicePixelRatio;
    setScale(this.camera, this.camera.scale * factor);
    const after = this.scale() / devicePixelRatio;
    this.shift(dx / before - dx / after, (dy / before - dy / after) / this.stretch());
  }

  // In pixels of the picture.
  /** @type {(x: number, y: number) => void} */
  shift(x, y) {
    const { camera } = this;
    camera.x = clamp(camera.x + x / this.picture.width, 0, 1);
    camera.y = clamp(camera.y + y / this.picture.height, 0, 1);
    camera.fitted = false;
    place();
  }

  /** @param {PointerEvent} event */
  press(event) {
    if (event.button !== 0 || around(event, ".message")) return;
    this.viewport.setPointerCapture(event.pointerId);
    this.fingers.set(event.pointerId, event);
    if (this.fingers.size === 1) this.travelled = 0;
  }

  /** @param {PointerEvent} event */
  move(event) {
    const before = this.fingers.get(event.pointerId);
    if (!before) return point(this, event);
    this.travelled += Math.hypot(event.clientX - before.clientX, event.clientY - before.clientY);
    if (!this.picture || (this.travelled < 4 && this.fingers.size === 1)) return;
    this.viewport.classList.add("dragged");
    /** @type {(points: Position[]) => Position} */
    const middle = (points) => ({ clientX: mean(points, "clientX"), clientY: mean(points, "clientY") });
    /** @type {(points: Position[]) => number} */
    const spread = ([one, other]) => (other ? Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY) : 0);
    const old = [...this.fingers.values()];
    this.fingers.set(event.pointerId, event);
    const now = [...this.fingers.values()];
    const [from, to] = [middle(old), middle(now)];
    const zoom = this.scale() / devicePixelRatio;
    this.shift((from.clientX - to.clientX) / zoom, (from.clientY - to.clientY) / (zoom * this.stretch()));
    if (spread(old) > 0) this.zoomAt(to, spread(now) / spread(old));
  }

  /** @param {PointerEvent} event */
  release(event) {
    if (!this.fingers.delete(event.pointerId) || this.fingers.size) return;
    this.viewport.classList.remove("dragged");
  }
}

/** @type {(points: Position[], key: keyof Position) => number} */
const mean = (points, key) => points.reduce((sum, point) => sum + point[key], 0) / points.length;

/** @type {(select: HTMLSelectElement) => void} */
function fillBeside(select) {
  const views = viewsShown().filter((view) => view !== state.view);
  select.replaceChildren(...views.map((view) => new Option(viewLabel(view), view)));
  select.value = besideView();
}
