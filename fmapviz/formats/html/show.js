// @ts-check
// Load the choice and show it in the panes.

import { writeAddress } from "./address.js";
import { fit, linkCameras, refit } from "./camera.js";
import { besideView, firstOf, nearest, pictureLike, rememberChoice, returnToChoice } from "./choose.js";
import { loadModel, loadUnit, takePicture } from "./data.js";
import { CHART, drawHistogram } from "./histogram.js";
import { chooseView, images, layers } from "./lists.js";
import { showOrder, sortChannels } from "./order.js";
import { Pane } from "./pane.js";
import { pinChannel, point, pointAgain, showPinned } from "./pins.js";
import { report } from "./registry.js";
import {
  besides, comparing, isShown, itemOn, labelOf, likeIn, panes, pictures, rank, state, viewLabel, viewsShown,
} from "./state.js";
import { modelAt, ofStep, stepAt, stepOn } from "./steps.js";
import { factOf, factPair, find, findAll, inputsIn, make, nameAt, paired, run, say, shape, visible } from "./text.js";
import { deadHere, inEachImage, layerOverall, statistics, tileOf } from "./tiles.js";

/** @import { Found, Picture, Side } from "./page.d.ts" */

const SHOWN_ELSEWHERE = new Set(["Layer", "Type", "Shape", "Range", "Model", "Weights", "Image", "Software", "Predicted"]);
const MOST_CHANNELS = 16;  // listed at first

let busy = false;
let stale = false;

let onlySteps = true;  // true if all choices that are not shown yet differ in their step only

// While a picture loads, only the latest choice is kept: a held key does not queue pictures that are never shown.
// `still`: only the step has changed, so nothing on the page moves.
/** @type {(options: { still?: boolean }) => Promise<void>} */
export async function showChosen({ still = false }) {
  // Selected at once: the next key continues from here even if the picture is not shown yet.
  images.select(run.units[state.units[state.side]], { still });
  for (const listener of report.chosen) listener();
  rememberChoice();
  showLayers({ still });
  stale = true;
  onlySteps &&= still;
  if (busy) return;
  busy = true;
  find("#panes").setAttribute("aria-busy", "true");
  try {
    while (stale) {
      stale = false;
      const latest = { still: onlySteps };
      onlySteps = true;
      await show(latest);
    }
    writeAddress();
  } finally {  // malformed data must not break the whole page
    busy = false;
    find("#panes").setAttribute("aria-busy", "false");
  }
  for (const listener of report.settled) listener();
}

/** @type {(options: { still: boolean }) => Promise<void>} */
async function show({ still }) {
  const numbers = comparing() ? state.units : [state.units[0]];
  await Promise.all(report.views.filter(isWanted).map((each) => each.load()));
  const sides = await Promise.all(numbers.map(lookUp));
  const [own, other] = sides.map((side) => picturesOf(side).sort((one, another) => rank(one) - rank(another)));
  const listed = report.pairing ? report.pairing.unite(own, other, { both: sides.every(({ error }) => !error) }) : own;
  Object.assign(pictures, { listed, others: other ?? [] });
  const [more] = report.views;
  if (state.view === null && more && listed.length && listed.every(({ view }) => view === "input")) {
    state.view = more.view;  // there is nothing else to show
    return show({ still });
  }
  for (const { error } of report.views.filter(isWanted)) for (const side of sides) side.error ??= error;
  if (state.view === null || state.name === null) chooseFirst();
  returnToChoice();
  rememberChoice();
  /** @type {[Side, Picture | undefined][]} */
  const wanted = sides.map((side) => [side, shownAmong(picturesOf(side))]);
  if (besides()) wanted.push([sides[0], pictureBeside()]);
  const found = await Promise.all(wanted.map(([side, picture], at) => findPicture(side, picture, at)));
  sortChannels(found);
  const same = panes.length === found.length && found.every(({ picture }, side) => sameView(picture, panes[side].picture));
  arrange(found.length);
  separateFacts(found);
  panes.forEach((pane, side) => pane.show(found[side]));
  linkCameras();
  if (same || still) refit();
  else fit();
  describe(found, { still });
}

/** @type {(lazy: { view: string }) => boolean} */
const isWanted = ({ view }) => [state.view, state.beside].includes(view);

/** @type {(among: Picture[]) => Picture | undefined} */
function shownAmong(among) {
  if (!paired || state.name === null) return among.find(isShown);
  return likeIn(among, state);
}

/** @type {(side: Side) => Picture[]} */
const picturesOf = ({ unit, model, films }) => [unit, films, model, ...report.views.map((each) => each.unit)].flatMap((each) => each?.pictures ?? []);

// The picture of the same layer, if the other view has it.
/** @type {() => Picture | undefined} */
function pictureBeside() {
  const shown = pictures.listed.find(isShown);
  const view = besideView();
  return (shown && pictureLike(shown, view)) ?? pictures.listed.find((picture) => picture.view === view);
}

// Facts in which two images differ are shown in their panes.
/** @type {(found: Found[]) => void} */
function separateFacts(found) {
  for (const side of found) {
    const facts = comparing() && side.picture ? shownFacts(side.picture) : [];
    side.own = facts.filter(([name, value]) => !isShared(found, name, value));
  }
}

/** @type {(picture: Picture) => [string, string][]} */
function shownFacts(picture) {
  const common = new Set(run.facts.map(([name]) => name));
  const ownRow = picture.statistics ? "Dead channels" : "";  // with buttons
  return picture.facts.filter(([name]) => !SHOWN_ELSEWHERE.has(name) && !common.has(name) && name !== ownRow);
}

/** @type {(found: { picture?: Picture | null }[], name: string, value: string) => boolean} */
const isShared = (found, name, value) => found.every(({ picture }) => !picture || factOf(picture, name) === value);

/** @type {(index: number, side: number) => Promise<Side>} */
async function lookUp(index, side) {
  const item = itemOn(side);
  const step = stepOn(side);
  const unit = nameAt(run.units[index], step ?? (paired ? stepAt(run.units[index], side) : null));
  const model = await modelAt(step, side);
  if (!item || (item.steps && !step)) return { unit: { unit }, model, error: `${unit} is not in ${run.runs[side].name}.` };
  const { href } = step ?? item;
  const films = await loadModel(item.films, "All steps of the training");
  try {
    return { unit: { ...ofStep(await loadUnit(href), item, step), unit, href }, model, films };
  } catch (error) {
    return { unit: { unit }, model, films, error: error.message };
  }
}

function chooseFirst() {
  if (report.views.some(({ view, unit }) => view === state.view && !unit)) return;  // it loads next, or cannot be read
  const { listed } = pictures;
  const drawn = listed.filter(({ view }) => view !== "input");
  const names = report.preferred.map((ask) => ask());
  const preferred = drawn.filter(({ layer }) => layer && names.includes(layer.name));
  const first = (state.view === null ? firstOf(preferred.length ? preferred : drawn) : nearest(state.view)) ?? listed[0];
  if (first) Object.assign(state, { view: first.view, name: first.name });
}

/** @type {(side: Side, picture: Picture | undefined, at: number) => Promise<Found>} */
async function findPicture({ unit, error }, picture, side) {
  if (!picture) {
    const [holder, of] = paired ? [run.runs[side].name, ` of ${unit.unit}`] : [unit.unit, ""];
    const missing = `${visible(holder)} has no picture ${visible(state.name + of)} in the view ${viewLabel(state.view)}.`;
    return { unit, error: error ? visible(error) : missing };
  }
  if (picture.histogram) return { unit, picture: { ...picture, ...CHART }, image: drawHistogram(picture) };
  try {
    return { unit, picture, image: await takePicture(picture.src) };
  } catch (failure) {
    return { unit, error: visible(failure.message) };
  }
}

// True for the same picture of another image, which keeps its position.
/** @type {(picture: Picture | undefined, before: Picture | null) => boolean} */
function sameView(picture, before) {
  return picture && before && picture.view === before.view && picture.name === before.name;
}

/** @type {(amount: number) => void} */
export function arrange(amount) {
  const focused = document.activeElement?.closest(".pane");
  while (panes.length > amount) for (const part of [panes.at(-1).tip, panes.pop().root]) part.remove();
  if (focused && !focused.isConnected) panes[0].viewport.focus();
  while (panes.length < amount) panes.push(new Pane(panes.length));
  // Moving an existing pane would take the focus from it.
  for (const { root } of panes) if (!root.isConnected) find("#swipe").before(root);
  document.body.classList.toggle("comparing", comparing());
  find("#compare").setAttribute("aria-pressed", String(comparing()));
  find("#beside").setAttribute("aria-pressed", String(besides()));
  /** @type {HTMLButtonElement} */ (find("#beside")).disabled = viewsShown().length < 2;
  for (const listener of report.arranged) listener();
}

/** @type {(found: Found[], options: { still: boolean }) => void} */
function describe(found, { still }) {
  showLayers({ still });
  for (const listener of report.described) listener();
  const { picture } = found.find((side) => side.picture) ?? {};
  const label = picture ? labelOf(picture) : state.name ?? "";
  find("#title").textContent = visible(label);
  const range = picture && found.length === 1 ? factOf(picture, "Range") : "";
  const kind = picture?.layer ? [picture.layer.type, shape(picture.layer), range] : [picture ? `${picture.width} \u00d7 ${picture.height} pixels` : ""];
  find("#kind").textContent = kind.filter(Boolean).map(visible).join(" \u00b7 ");
  const scaling = picture && isShared(found, "Scaling", factOf(picture, "Scaling")) ? factOf(picture, "Scaling") : "";
  find("#scaling").textContent = visible(scaling.charAt(0).toUpperCase() + scaling.slice(1));
  showFacts();
  showOrder(picture);
  holdFacts();
  const names = (comparing() && !paired ? found : found.slice(0, 1)).map(({ unit }) => visible(unit.unit)).join(" and ");
  document.title = `${visible(label)} - ${names} - ${visible(run.title)}`;
  if (still) pointAgain();
  else point(null);
  showPinned();
  const titles = found.length > 1 ? found.filter((side) => side.picture).map((side) => side.picture.title || labelOf(side.picture)) : [];
  if (still) say(found.map(({ error }) => error).filter(Boolean).join(". "));  // the slider says the step
  else say([`${label}, ${names}`, titles.join(" and "), ...found.map(({ error }) => error)].filter(Boolean).join(". "));
}

// Facts of the first picture; of two images only those that they share.
export function showFacts() {
  const about = comparing() ? panes : panes.slice(0, 1);
  const { picture } = about.find((pane) => pane.picture) ?? {};
  const facts = (picture ? shownFacts(picture) : []).filter(([name, value]) => name !== "Scaling" && isShared(about, name, value));
  find("#about").replaceChildren(...facts.map(([name, value]) => factPair(name, value)), ...(picture ? deadFacts(picture) : []));
}

// The dead channels of the run, if its statistics are loaded, and further ones of this image.
/** @type {(picture: Picture) => HTMLElement[]} */
function deadFacts(picture) {
  const ofRun = layerOverall(picture)?.dead ?? [];
  const here = comparing() ? [] : deadHere(picture).filter((channel) => !ofRun.includes(channel));
  /** @type {[string, number[]][]} */
  const pairs = [];
  if (ofRun.length) pairs.push([`Dead ${inEachImage()}`, ofRun]);
  if (here.length) pairs.push([ofRun.length ? "Also dead in this image" : "Dead in this image", here]);
  return pairs.map(([name, channels]) => {
    const pair = factPair(name, channelButtons(channels, (channel) => tileOf(picture, channel) >= 0, pinChannel));
    pair.className = "dead-channels";
    return pair;
  });
}

// Channel numbers, each a button if the channel has a tile.
/** @type {(channels: number[], canShow: (channel: number) => boolean, choose: (channel: number) => void) => HTMLElement} */
export function channelButtons(channels, canShow, choose) {
  const list = make("span", "channels");
  /** @type {(some: number[]) => void} */
  const add = (some) => list.append(...some.map((channel) => {
    if (!canShow(channel)) return make("span", "", channel);
    const button = Object.assign(make("button", "", channel), { type: "button", ariaLabel: `Channel ${channel}` });
    button.addEventListener("click", () => choose(channel));
    return button;
  }));
  add(channels.slice(0, MOST_CHANNELS));
  if (channels.length <= MOST_CHANNELS) return list;
  const rest = Object.assign(make("button", "", `${channels.length - MOST_CHANNELS} more`), { type: "button" });
  rest.addEventListener("click", () => {
    rest.remove();
    add(channels.slice(MOST_CHANNELS));
    /** @type {HTMLElement} */ (list.children[MOST_CHANNELS]).focus();
  });
  list.append(rest);
  return list;
}

/** @type {string | null} */
let listKey = null;  // the pictures that the list was made from

/** @type {(options?: { still?: boolean }) => void} */
export function showLayers({ still = false } = {}) {
  showViews(viewsShown());
  const ofView = pictures.listed.filter(({ view }) => view === state.view);
  // Rows are rebuilt only if the pictures differ.
  const key = JSON.stringify([statistics.overall !== null, state.view, ofView.map((picture) => [picture.name, labelOf(picture), picture.layer])]);
  if (key !== listKey) layers.setItems(ofView);
  listKey = key;
  layers.select(layers.items.find(isShown) ?? null, { still });
}

/** @type {(views: string[]) => void} */
function showViews(views) {
  const field = find("#views");
  const names = views.join("\n");
  if (field.dataset.names !== names) {
    field.dataset.names = names;
    for (const label of findAll("label", field)) label.remove();
    field.append(...views.map(viewChoice));
  }
  field.hidden = views.length < 2;
  for (const input of inputsIn(field)) input.checked = input.value === state.view;
}

/** @type {(view: string) => HTMLElement} */
function viewChoice(view) {
  const label = make("label");
  const input = make("input");
  Object.assign(input, { type: "radio", name: "view", value: view });
  input.addEventListener("change", () => chooseView(view));
  // After a click the arrow keys change the layer; with keyboard focus they still choose the view.
  label.addEventListener("pointerup", () => setTimeout(() => layers.box.focus()));
  label.append(input, viewLabel(view));
  return label;
}

// The facts of all steps have equal height, and scroll if it is too small.
function holdFacts() {
  const facts = find(".about > div");
  const scrolls = document.body.classList.contains("stepping") && facts.scrollHeight > facts.clientHeight;
  if (scrolls) Object.assign(facts, { tabIndex: 0, role: "group", ariaLabel: "About the picture" });
  else for (const name of ["tabindex", "role", "aria-label"]) facts.removeAttribute(name);
}
