// @ts-check
// What is chosen and shown: images, view, layer, channel, and the pictures there are.

import { report } from "./registry.js";
import { paired, run, visible, withoutNumber } from "./text.js";

/** @import { Item, Picture, Position, State } from "./page.d.ts" */
/** @import { Pane } from "./pane.js" */
/** @typedef {{ view: string | null, name: string | null }} Named */

// `units`: numbers of the images of A and, when two are compared, B; `name` and `view` identify a picture across images.
// `steps`: of images that are series, the numbers of the steps that were chosen.
// `beside`: the other view of image A that is shown too; `order`: the number by which channels are sorted; `swipe`: where the
// divider is between two pictures over each other, in per cent of the width;
// `playing`: whether the steps are being played.
/** @type {State} */
export const state = { side: 0, units: [0, null], steps: [null, null], view: null, name: null, beside: null, channel: null, order: null, swipe: null, playing: false };
// What the panes show, and where the pointer is: over which channel of which pane.
/** @type {Pane[]} */
export const panes = [];
/** @type {{ pane: Pane | null, event: Position | null, channel: number | null }} */
export const pointer = { pane: null, event: null, channel: null };
// The pictures of image A and of the model, and those of image B.
/** @type {{ known: Picture[], others: Picture[] }} */
export const pictures = { known: [], others: [] };

// Shows what is chosen, once a listener does.
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
// What the side shows of its image: in the page of two runs, what the run on that side has of it, or null.
/** @type {(side: number) => Item | null} */
export const itemOn = (side) => (paired ? run.units[state.units[side]].of[side] : run.units[state.units[side]]);
// The same picture in another run, where the layer may have another number.
/** @type {(one: Named, other: Named) => boolean} */
export const isAlike = (one, other) => one.view === other.view && withoutNumber(one.name) === withoutNumber(other.name);
/** @type {(among: Picture[], picture: Named) => Picture | undefined} */
export const likeIn = (among, picture) => among.find(({ view, name }) => view === picture.view && name === picture.name) ?? among.find((each) => isAlike(each, picture));
/** @type {(among: Picture[]) => string[]} */
export const viewsOf = (among) => [...new Set(among.map(({ view }) => view))];
// With those of capabilities, whose data may not be loaded yet.
/** @type {() => string[]} */
export const viewsShown = () => [...new Set([...viewsOf(pictures.known), ...report.views.map(({ view }) => view)])].sort((one, other) => rank({ view: one }) - rank({ view: other }));
/** @type {(view: string | null) => string} */
export const viewLabel = (view) => report.views.find((each) => each.view === view)?.label ?? visible(view);
// The input first, then the views in the order in which they were requested.
/** @type {(picture: { view: string }) => number} */
export const rank = ({ view }) => (run.views ?? []).indexOf(view);

// Of two images compared, each may show the map of its own class: both have the picture's name in common.
/** @type {(picture: Picture) => string} */
export function labelOf(picture) {
  const other = comparing() && (paired ? likeIn(pictures.others, picture) : pictures.others.find(({ view, name }) => view === picture.view && name === picture.name));
  return other && other.title !== picture.title ? picture.name : picture.title || picture.name;
}
