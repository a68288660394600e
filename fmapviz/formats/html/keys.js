// @ts-check
// Keyboard commands, which differ by the focused element.

import { fit, pan, PAN, zoomBy } from "./camera.js";
import { changeSide, toggleBeside, toggleCompare } from "./choose.js";
import { chooseView, images, layers } from "./lists.js";
import { nextOrder } from "./order.js";
import { pinNeighbour, unpin } from "./pins.js";
import { report } from "./registry.js";
import { besides, comparing, state } from "./state.js";
import { find, inputsIn, run } from "./text.js";
import { toggleTheme } from "./theme.js";

/** @import { Rows } from "./page.d.ts" */
/** @typedef {Rows<any>} AnyList */

function escape() {
  const list = [images, layers].find(({ filter }) => filter === document.activeElement || filter.value);
  if (list) {
    list.filter.value = "";
    list.sift();
    list.box.focus();
  } else if (state.channel !== null) unpin();
  else if (report.escapes.some((leave) => leave())) return;
  else if (comparing()) toggleCompare();
  else if (besides()) toggleBeside();
}

/** @type {(list: AnyList) => void} */
function focusFilter(list) {
  list.expand(true);
  list.filter.focus();
  list.filter.select();
}

function nextView() {
  const views = inputsIn(find("#views")).map(({ value }) => value);
  if (views.length) chooseView(views[(views.indexOf(state.view) + 1) % views.length]);
}

/** @type {Record<string, () => void>} */
const KEYS = {
  ArrowUp: () => layers.step(-1), ArrowDown: () => layers.step(1),
  ArrowLeft: () => images.step(-1), ArrowRight: () => images.step(1),
  "+": () => zoomBy("in"), "=": () => zoomBy("in"), "-": () => zoomBy("out"), 0: () => fit(),
  "[": () => pinNeighbour(-1), "]": () => pinNeighbour(1),
  "/": () => focusFilter(layers), i: () => focusFilter(images),
  c: toggleCompare, b: toggleBeside, o: nextOrder, s: () => changeSide(1 - state.side), v: nextView, t: () => toggleTheme(),
  "?": () => /** @type {HTMLDialogElement} */ (find("#help")).showModal(), Escape: escape,
};

// In a list and its filter, these keys move through the rows.
/** @type {(list: AnyList) => Record<string, () => void>} */
function listKeys(list) {
  return {
    ArrowUp: () => list.step(-1), ArrowDown: () => list.step(1),
    PageUp: () => list.step(-list.page()), PageDown: () => list.step(list.page()),
    Home: () => list.step(-list.items.length), End: () => list.step(list.items.length),
  };
}

/** @type {(list: AnyList) => Record<string, () => void>} */
function filterKeys(list) {
  const { ArrowUp, ArrowDown, PageUp, PageDown } = listKeys(list);
  const Enter = () => {
    if (list.shown.length && !list.shown.includes(list.selected)) list.choose(list.shown[0], false);
    list.box.focus();
  };
  return { ArrowUp, ArrowDown, PageUp, PageDown, Enter, Escape: escape };
}

/** @type {(target: HTMLElement) => Record<string, (() => void) | null>} */
function keysFor(target) {
  const list = [images, layers].find(({ root }) => root.contains(target));
  if (target === list?.filter) return filterKeys(list);
  if (target === list?.box) return { ...KEYS, ...report.keys, ...listKeys(list) };
  if (target.matches("select")) return { Escape: escape };
  if (target.matches("input:is([type=radio], [type=range]), [role=slider]")) return { ...KEYS, ...report.keys, ArrowUp: null, ArrowDown: null, ArrowLeft: null, ArrowRight: null };
  return { ...KEYS, ...report.keys };
}

/** @type {(event: KeyboardEvent) => void} */
export function press(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  const command = event.ctrlKey || event.metaKey || event.altKey;
  // On some keyboards brackets need AltGr, which may be reported as Ctrl and Alt.
  if ((command && !event.getModifierState("AltGraph")) || find("dialog[open]") || !run.units.length) return;
  const shifted = event.shiftKey && event.key in PAN && !target.matches("input");
  const act = shifted ? () => pan(event.key) : keysFor(target)[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}
