// @ts-check
// The state of the page: the chosen images, view, layer and channel, and the available pictures.

import { report } from "./registry.js";
import { paired, run, visible, withoutNumber } from "./text.js";

/** @import { Item, Picture, Position, State } from "./page.d.ts" */
/** @import { Pane } from "./pane.js" */
/** @typedef {{ view: string | null, name: string | null }} Named */

// `units`: indices of image A and, when two are compared, image B; `name` and `view` identify a picture across images.
// `steps`: the chosen steps of images that are series. `beside`: the second view of image A. `order`: the number by which
// channels are sorted. `swipe`: the position of the divider between two pictures over each other, in per cent of the width.
// `playing`: true while the steps are played.
/** @type {State} */
export const state = { side: 0, units: [0, null], steps: [null, null], view: null, name: null, beside: null, channel: null, order: null, swipe: null, playing: false };
// The panes, and the pane and channel under the pointer.
/** @type {Pane[]} */
export const panes = [];
/** @type {{ pane: Pane | null, event: Position | null, channel: number | null }} */
export const pointer = { pane: null, event: null, channel: null };
// The pictures of image A and of the model, and those of image B.
/** @type {{ listed: Picture[], others: Picture[] }} */
export const pictures = { listed: [], others: [] };

// Shows the choice; set by `listenToChoices`.
/** @type {(options: { still?: boolean }) => Promise<void>} */
let showChoice = async () => {};
/** @type {(listener: (options: { still?: boolean }) => Promise<void>) => void} */
export const listenToChoices = (listener) => { showChoice = listener; };
/** @type {(options?: { still?: boolean }) => Promise<void>} */
export const update = (options = {}) => showChoice(options);

export const comparing = () => state.units[1] !== null;
export const besides = () => state.beside !== null;
export const swiping = () => state.swipe !== null && (comparing() || besides());
/** @type {(picture: Picture) => boolean} */
export const isShown = (picture) => picture.view === state.view && picture.name === state.name;
// The entry of the image on a side; on the page of two runs that of the side's run, or null if the run lacks the image.
/** @type {(side: number) => Item | null} */
export const itemOn = (side) => (paired ? run.units[state.units[side]].of[side] : run.units[state.units[side]]);
// True for the same picture in another run, where the layer may have another number.
/** @type {(one: Named, other: Named) => boolean} */
export const isAlike = (one, other) => one.view === other.view && withoutNumber(one.name) === withoutNumber(other.name);
/** @type {(among: Picture[], picture: Named) => Picture | undefined} */
export const likeIn = (among, picture) => among.find(({ view, name }) => view === picture.view && name === picture.name) ?? among.find((each) => isAlike(each, picture));
/** @type {(among: Picture[]) => string[]} */
export const viewsOf = (among) => [...new Set(among.map(({ view }) => view))];
// Includes views of features, whose data may not be loaded yet.
/** @type {() => string[]} */
export const viewsShown = () => [...new Set([...viewsOf(pictures.listed), ...report.views.map(({ view }) => view)])].sort((one, other) => rank({ view: one }) - rank({ view: other }));
/** @type {(view: string | null) => string} */
export const viewLabel = (view) => report.views.find((each) => each.view === view)?.label ?? visible(view);
// The input first, then the views in the order in which they were requested.
/** @type {(picture: { view: string }) => number} */
export const rank = ({ view }) => (run.views ?? []).indexOf(view);

// When two images are compared, each may show the map of its own class; then the label is the picture's name, which they share.
/** @type {(picture: Picture) => string} */
export function labelOf(picture) {
  const other = comparing() && (paired ? likeIn(pictures.others, picture) : pictures.others.find(({ view, name }) => view === picture.view && name === picture.name));
  return other && other.title !== picture.title ? picture.name : picture.title || picture.name;
}
