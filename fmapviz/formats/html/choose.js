// @ts-check
// Choosing an image, a layer, a view, a side or an order.

import { besides, comparing, isShown, pictures, state, update, viewsOf, viewsShown } from "./state.js";
import { isSeries, stepBeside } from "./steps.js";
import { paired, run, withoutNumber } from "./text.js";

/** @import { Item, Layer, Picture } from "./page.d.ts" */

// The chosen layers, the latest first. A view without the latest layer shows an earlier one, or its first layer. The latest
// layer returns with the next view that has it, or the next image if the view was chosen last.
/** @type {{ layers: { name: string, layer: Layer | null }[], ofView: boolean }} */
export const choice = { layers: [], ofView: false };

// Gradients and class activation maps have their own numbering, and a layer may have several.
/** @type {(picture: { name: string, layer: Layer | null }, view: string | null) => Picture | undefined} */
export function pictureLike({ name, layer }, view) {
  const ofView = pictures.listed.filter((picture) => picture.view === view);
  return ofView.find((picture) => picture.name === name)
    ?? ofView.find((picture) => withoutNumber(picture.name) === withoutNumber(name))
    ?? ofView.find((picture) => layer && picture.layer?.name === layer.name && picture.behaviour?.holds(picture, state.channel))
    ?? ofView.find((picture) => layer && picture.layer?.name === layer.name);
}

/** @type {(view: string | null) => Picture | undefined} */
export function nearest(view) {
  for (const layer of choice.layers) {
    const like = pictureLike(layer, view);
    if (like) return like;
  }
  return firstOf(pictures.listed.filter((picture) => picture.view === view));
}

// Of two runs, prefer a picture that both have.
/** @type {(among: Picture[]) => Picture | undefined} */
export const firstOf = (among) => among.find(({ only }) => only === undefined) ?? among[0];

// A fallback does not count as a choice.
export function rememberChoice() {
  const shown = pictures.listed.find(isShown);
  if (!shown || nearest(shown.view) === shown) return;
  const { name, layer } = shown;
  choice.layers = [{ name, layer }, ...choice.layers.filter((each) => each.name !== name)];
}

export function returnToChoice() {
  const like = choice.ofView && choice.layers.length ? pictureLike(choice.layers[0], state.view) : null;
  if (like) state.name = like.name;
}

/** @type {(item: Item, other?: boolean) => void} */
export function chooseImage(item, other) {
  if (paired) return showPair(item.index);
  const side = other ? 1 - state.side : state.side;
  if (other && !comparing()) return compareWith(item.index);
  state.units[side] = item.index;
  update();
}

/** @type {(index: number) => void} */
function showPair(index) {
  state.units = [index, index];
  update();
}

/** @type {(picture: Picture) => void} */
export function chooseLayer(picture) {
  Object.assign(state, { name: picture.name, view: picture.view });
  choice.ofView = false;
  update();
}

/** @type {(index: number) => void} */
function compareWith(index) {
  state.beside = null;
  state.steps[1] = stepBeside(index);
  state.units[1] = index;
  state.side = 1;
  update();
}

// The view that is shown beside the first: the chosen one, unless both are the same.
/** @type {() => string | null} */
export function besideView() {
  if (viewsShown().includes(state.beside) && state.beside !== state.view) return state.beside;
  return viewsOf(pictures.listed).find((view) => view !== state.view) ?? null;
}

/** @type {(view: string | null) => void} */
export function chooseBeside(view) {
  state.beside = view;
  update();
}

export function toggleBeside() {
  if (paired || viewsShown().length < 2) return;
  state.units[1] = null;
  state.side = 0;
  chooseBeside(besides() ? null : "input");
}

/** @type {(order: string) => void} */
export function chooseOrder(order) {
  state.order = order || null;
  update();
}

export const canCompare = () => !paired && (run.units.length > 1 || isSeries(run.units[0]));

// Compares with the next image, or the last image with the one before it; a single series with another of its steps.
export function toggleCompare() {
  if (!canCompare()) return;
  if (!comparing()) return compareWith(state.units[0] + 1 < run.units.length ? state.units[0] + 1 : Math.max(0, state.units[0] - 1));
  state.units[1] = null;
  state.side = 0;
  update();
}

/** @type {(side: number) => void} */
export function changeSide(side) {
  state.side = comparing() && !paired ? side : 0;
  update();
}
