// @ts-check
// Series: an image at the steps of a training, and the slider that moves through them.

import { writeAddress } from "./address.js";
import { loadAhead, loadUnit } from "./data.js";
import { comparing, itemOn, panes, state, update } from "./state.js";
import { hasSeries, isSeries, modelAt, ofStep, positionAt, shownItem } from "./steps.js";
import { clamp, find, LETTERS, paired, run, wordOf } from "./text.js";

/** @import { Report, Unit } from "./page.d.ts" */

const FILM = { whole: 12000, shortest: 100, longest: 400 };  // milliseconds: of all steps, and of each

/** @type {(position: number) => void} */
function chooseStep(position) {
  const item = shownItem();
  if (!item.steps) return;
  const { step } = item.steps[clamp(position, 0, item.steps.length - 1)];
  // Two images move together; if one image is compared at two steps, only the chosen side moves.
  const together = paired || (comparing() && state.units[0] !== state.units[1]);
  state.steps = state.steps.map((other, side) => (together || side === state.side ? step : other));
  update({ still: true });
}

/** @type {(by: number) => void} */
function moveStep(by) {
  pause();
  if (shownItem().steps) chooseStep(positionAt(shownItem(), state.side) + by);
}

let timer = 0;

function togglePlaying() {
  if (state.playing) return pause();
  const item = shownItem();
  if (!isSeries(item)) return;
  const { length } = item.steps;
  if (positionAt(item, state.side) === length - 1) chooseStep(0);
  timer = setInterval(playNext, clamp(FILM.whole / length, FILM.shortest, FILM.longest));
  state.playing = true;
  showSteps();
}

// A step that is still loading delays the next one.
function playNext() {
  const item = shownItem();
  const next = item.steps ? positionAt(item, state.side) + 1 : Infinity;
  if (next >= (item.steps?.length ?? 0)) pause();
  else if (find("#panes").ariaBusy !== "true") chooseStep(next);
}

function pause() {
  if (!state.playing) return;
  clearInterval(timer);
  state.playing = false;
  showSteps();
  writeAddress();
}

function showSteps() {
  const item = shownItem();
  document.body.classList.toggle("stepping", Boolean(item.steps));
  find("#steps").hidden = !item.steps;
  if (!item.steps) return;
  const { length } = item.steps;
  const at = positionAt(item, state.side);
  /** @type {(position: number) => string} */
  const text = (position) => `${wordOf(item)} ${item.steps[position].step} (${position + 1} of ${length})`;
  const slider = find("#step");
  Object.assign(slider, { max: length - 1, value: at, disabled: length < 2, ariaValueText: text(at), ariaLabel: item.word ? "Frame of the film" : "Step of the training" });
  const shown = find("#step-shown");
  shown.textContent = `${comparing() && !paired && state.units[0] === state.units[1] ? `${LETTERS[state.side]}: ` : ""}${text(at)}`;
  shown.style.minWidth = `${text(length - 1).length + (comparing() ? 3 : 0)}ch`;
  const button = find("#play");
  Object.assign(button, { disabled: length < 2, ariaLabel: state.playing ? "Pause" : "Play", title: `${state.playing ? "Pause" : "Play"} (p)` });
  button.classList.toggle("playing", state.playing);
}

async function loadNeighbours() {
  const wanted = new Set();
  for (const [at, { picture }] of panes.entries()) {
    const side = comparing() ? at : 0;
    const [{ steps }, item] = [run.units[state.units[side]], itemOn(side)];
    if (!picture || !item?.steps) continue;
    const position = positionAt({ steps }, side);
    for (const next of [steps[position + 1], steps[position - 1]]) {
      const step = next && item.steps.find((each) => each.step === next.step);
      if (!step) continue;
      const loading = loadUnit(step.href).then((loaded) => ofStep(loaded, item, step), () => /** @type {Unit | null} */ (null));
      const units = await Promise.all([loading, modelAt(step, side)]);
      const like = units.flatMap((unit) => unit?.pictures ?? []).find((each) => each.view === picture.view && each.name === picture.name);
      if (like && !like.histogram) wanted.add(like.src);
    }
  }
  loadAhead(wanted);
}

/** @param {Report} report */
export function register(report) {
  if (!hasSeries) return;
  report.chosen.push(showSteps);
  report.settled.push(loadNeighbours);
  Object.assign(report.keys, { ",": () => moveStep(-1), ".": () => moveStep(1), p: togglePlaying });
  find("#play").addEventListener("click", togglePlaying);
  find("#step").addEventListener("input", () => {
    pause();
    chooseStep(Number(/** @type {HTMLInputElement} */ (find("#step")).value));
  });
}
