// @ts-check
// The swipe: two pictures over each other. The first one is visible left of the divider, the second one right of it.

import { writeAddress } from "./address.js";
import { linkCameras, place, refit } from "./camera.js";
import { point } from "./pins.js";
import { panes, state, swiping } from "./state.js";
import { clamp, find, say } from "./text.js";

/** @import { Report } from "./page.d.ts" */

const MIDDLE = 50;  // per cent of the width

function toggleSwipe() {
  if (panes.length < 2) return;
  state.swipe = swiping() ? null : MIDDLE;
  point(null);
  showSwipe();
  linkCameras();
  refit();
  place();
  writeAddress();
  if (swiping()) find("#divider").focus({ preventScroll: true });  // the arrow keys move it
  say(swiping() ? "The two pictures over each other" : "The two pictures beside each other");
}

function showSwipe() {
  const on = swiping();
  const layer = find("#swipe");
  document.body.classList.toggle("swiping", on);
  find("#over").setAttribute("aria-pressed", String(on));
  /** @type {HTMLButtonElement} */ (find("#over")).disabled = panes.length < 2;
  layer.hidden = !on;
  // A tip inside its viewport would be cut off at the divider.
  for (const pane of panes) (on ? layer : pane.viewport).append(pane.tip);
  if (on) divide(state.swipe);
}

/** @type {(share: number) => void} */
function divide(share) {
  state.swipe = clamp(share, 0, 100);
  find("#panes").style.setProperty("--split", `${state.swipe}%`);
  const rounded = Math.round(state.swipe);
  Object.assign(find("#divider"), { ariaValueNow: rounded, ariaValueText: `${rounded} %` });
}

/** @type {(share: number) => void} */
function moveDivider(share) {
  divide(share);
  writeAddress();
}

function leaveSwipe() {
  const on = swiping();
  if (on) toggleSwipe();
  return on;
}

/** @type {(text: string) => void} */
function readDivider(text) {
  state.swipe = /^\d+(\.\d+)?$/.test(text) ? clamp(Number(text), 0, 100) : null;
}

/** @type {Record<string, (share: number) => number>} */
const DIVIDER_KEYS = {
  ArrowLeft: (share) => share - 1, ArrowRight: (share) => share + 1, ArrowDown: (share) => share - 1, ArrowUp: (share) => share + 1,
  PageDown: (share) => share - 10, PageUp: (share) => share + 10, Home: () => 0, End: () => 100,
};

/** @param {Report} report */
export function register(report) {
  report.arranged.push(showSwipe);
  report.keys.w = toggleSwipe;
  report.escapes.push(leaveSwipe);
  report.addressParts.push({ name: "swipe", write: () => (swiping() ? Number(state.swipe.toFixed(1)) : null), read: readDivider });
  const divider = find("#divider");
  /** @type {number | null} */
  let grip = null;  // distance of the pointer from the divider's middle
  find("#over").addEventListener("click", toggleSwipe);
  divider.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const { left, width } = divider.getBoundingClientRect();
    grip = event.clientX - left - width / 2;
    divider.setPointerCapture(event.pointerId);
  });
  divider.addEventListener("pointermove", (event) => {
    if (grip === null) return;
    const { left, width } = find("#swipe").getBoundingClientRect();
    moveDivider((100 * (event.clientX - grip - left)) / width);
  });
  for (const end of ["pointerup", "pointercancel"]) divider.addEventListener(end, () => { grip = null; });
  divider.addEventListener("wheel", (event) => panes[0].wheel(event), { passive: false });
  divider.addEventListener("keydown", (event) => {
    if (!(event.key in DIVIDER_KEYS) || event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    moveDivider(DIVIDER_KEYS[event.key](state.swipe));
  });
}
