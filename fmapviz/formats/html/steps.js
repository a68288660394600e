// @ts-check
// The steps of images that are series: of a training, or the frames of a film.

import { address, loadModel } from "./data.js";
import { itemOn, state } from "./state.js";
import { paired, run } from "./text.js";

/** @import { Item, Picture, Step, Unit } from "./page.d.ts" */

export const hasSeries = run.units.some(({ steps }) => steps);
/** @type {(item: Item | undefined) => boolean} */
export const isSeries = (item) => (item?.steps?.length ?? 0) > 1;
/** @type {() => Item} */
export const shownItem = () => run.units[state.units[state.side]];

// The position of the nearest step; of the last one for null.
/** @type {(steps: Step[], wanted: number | null) => number} */
function nearestStep(steps, wanted) {
  if (wanted === null) return steps.length - 1;
  /** @type {(at: number) => number} */
  const distance = (at) => Math.abs(steps[at].step - wanted);
  return steps.reduce((best, _, at) => (distance(at) < distance(best) ? at : best), 0);
}

/** @type {(item: { steps?: Step[] }, side: number) => number} */
export const positionAt = (item, side) => nearestStep(item.steps, state.steps[side]);

/** @type {(item: Item | null, side: number) => Step | null} */
export const stepAt = (item, side) => item?.steps?.[positionAt(item, side)] ?? null;

// Two runs show the same step; a run that lacks it shows none.
/** @type {(side: number) => Step | null} */
export function stepOn(side) {
  const step = stepAt(run.units[state.units[side]], side);
  return paired ? itemOn(side)?.steps?.find((each) => each.step === step?.step) ?? null : step;
}

// An image that is compared with itself is shown at another step.
/** @type {(index: number) => number | null} */
export function stepBeside(index) {
  const { steps } = run.units[index];
  if (index !== state.units[0] || !steps) return state.steps[0];
  return steps[positionAt(run.units[index], 0) === 0 ? steps.length - 1 : 0].step;
}

// The model at the step of an image; the last one beside an image that has none.
/** @type {(step: Step | null, side: number) => Promise<Unit | null> | null} */
export function modelAt(step, side) {
  const of = paired ? run.runs[side] : run;
  if (!of.models) return loadModel(of.model, "The model, the same for all images");
  const model = of.models[nearestStep(of.models, step?.step ?? null)];
  return loadModel(model.href, `The model, step ${model.step}`);
}

// All steps have the same input, which is stored once.
/** @type {(loaded: Unit, item: Item, step: Step | null) => Unit} */
export function ofStep(loaded, item, step) {
  if (!item.steps || step.input) return loaded;
  /** @type {(picture: Picture) => Picture} */
  const shared = (picture) => (picture.view === "input" ? { ...picture, src: address(item.href + picture.href) } : picture);
  return { ...loaded, pictures: loaded.pictures.map(shared) };
}
