// @ts-check
// The lists of images and of layers, and their rows.

import { choice, chooseImage, chooseLayer, nearest } from "./choose.js";
import { address, pictureAddress } from "./data.js";
import { List } from "./list.js";
import { report } from "./registry.js";
import { comparing, labelOf, state, update } from "./state.js";
import { count, cutName, find, LETTERS, make, nameParts, paired, run, shape, visible, wordOf } from "./text.js";
import { inEachImage, layerOverall } from "./tiles.js";

/** @import { Item, Picture, Rows } from "./page.d.ts" */

/** @type {Rows<Item>} */
export const images = new List(find("#images"), { row: 52, noun: "image", label: ({ unit }) => unit, draw: drawImage, mark: markImage, choose: chooseImage });
/** @type {Rows<Picture>} */
export const layers = new List(find("#layers"), { row: 44, noun: "layer", label: labelOf, draw: drawLayer, choose: (picture) => chooseLayer(picture) });

/** @type {(item: Item, row: HTMLElement) => void} */
function drawImage(item, row) {
  const [folder, name] = nameParts(item.unit);
  const text = make("span", "two");
  text.append(...cutName(name, "name"), make("span", "note", [folder, item.steps && count(item.steps.length, wordOf(item)), item.predictions?.[0]].filter(Boolean).join(" \u00b7 ")));
  text.title = visible(item.unit);
  const [first, second] = item.of ?? [item, item];
  if (!first || !second) find(".note", text).append(`only in ${visible(run.runs[first ? 0 : 1].name)}`);
  if ((first ?? second).thumbnail !== false) row.append(thumbnail(first ?? second));
  row.append(text);
}

/** @type {(item: Item) => HTMLElement} */
function thumbnail({ href }) {
  const thumb = make("img", "thumb");
  return Object.assign(thumb, { alt: "", decoding: "async", src: pictureAddress(address(`${href}input.png`)) });
}

/** @type {(row: HTMLElement, item: Item) => void} */
function markImage(row, item) {
  const letters = comparing() && !paired ? LETTERS.filter((_, side) => state.units[side] === item.index) : [];
  find(".letter", row)?.remove();
  if (letters.length) row.append(make("span", "letter", letters.join("")));
}

/** @type {(picture: Picture, row: HTMLElement) => void} */
function drawLayer(picture, row) {
  const { layer } = picture;
  const text = make("span", "two");
  const label = labelOf(picture);
  const numbered = layer && label.match(/^(\d+) (.+)$/s);
  text.append(...cutName(numbered ? numbered[2] : label, "name"));
  const line = make("span", "line");
  line.append(make("span", "note", layer ? [layer.type, picture.behaviour?.note(picture) ?? shape(layer)].filter(Boolean).join(" \u00b7 ") : `${picture.width} \u00d7 ${picture.height} pixels`));
  text.append(line);
  text.title = visible(label);
  if (layer) row.append(make("span", "number", numbered ? numbered[1] : layer.index));
  row.append(text);
  const dead = layerOverall(picture)?.dead.length;
  if (picture.only !== undefined) line.append(make("span", "badge", `only in ${run.runs[picture.only].name}`));
  if (dead) line.append(Object.assign(make("span", "badge", `${dead} dead`), { title: `Channels with one value everywhere, ${inEachImage()}` }));
}

/** @type {(view: string) => void} */
export function chooseView(view) {
  const picture = nearest(view);
  if (!picture && !report.views.some((each) => each.view === view)) return;  // another image without it is being loaded
  Object.assign(state, { view, name: picture?.name ?? null });
  choice.ofView = true;
  layers.filter.value = "";
  update();
}
