// The selected images, view, layer and channel.

// `units`: numbers of the images of A and, when two are compared, B; `name` and `view` identify a picture across images.
// `steps`: of images that are series, the numbers of the steps that were chosen.
// `beside`: the other view of image A that is shown too; `order`: the number by which channels are sorted; `swipe`: where the
// divider is between two pictures over each other, in per cent of the width.
const state = { side: 0, units: [0, null], steps: [null, null], view: null, name: null, beside: null, channel: null, order: null, swipe: null };
const panes = [new Pane(0)];
const comparing = () => state.units[1] !== null;
const besides = () => state.beside !== null;
const isShown = (picture) => picture.view === state.view && picture.name === state.name;
// What the side shows of its image: in the page of two runs, what the run on that side has of it, or null.
const itemOn = (side) => (paired ? run.units[state.units[side]].of[side] : run.units[state.units[side]]);
// The same picture in another run, where the layer may have another number.
const isAlike = (one, other) => one.view === other.view && withoutNumber(one.name) === withoutNumber(other.name);
const likeIn = (pictures, picture) => pictures.find(({ view, name }) => view === picture.view && name === picture.name) ?? pictures.find((each) => isAlike(each, picture));
let pointedChannel = null;
let known = [];  // the pictures of image A, and of the model
let others = [];  // those of image B
const viewsOf = (pictures) => [...new Set(pictures.map(({ view }) => view))];
// With that of the top images, whose data may not be loaded yet.
const viewsShown = () => [...new Set([...viewsOf(known), ...(run.top ? [TOP] : [])])].sort((one, other) => rank({ view: one }) - rank({ view: other }));
const viewLabel = (view) => (view === TOP && run.top ? "top images" : visible(view));

// The chosen layers, the latest first. A view without the latest shows an earlier one, or its first layer; a view that has
// it returns to it, and so does another image if the view was chosen last.
let chosen = [];
let viewChosen = false;

const narrow = matchMedia("(max-width: 720px)");
const images = new List(find("#images"), { row: 52, noun: "image", draw: drawImage, mark: markImage, choose: chooseImage });
const layers = new List(find("#layers"), { row: 44, noun: "layer", draw: drawLayer, choose: (picture) => chooseLayer(picture) });

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

function thumbnail({ href }) {
  const thumb = make("img", "thumb");
  return Object.assign(thumb, { alt: "", decoding: "async", src: pictureAddress(address(`${href}input.png`)) });
}

function markImage(row, item) {
  const letters = comparing() && !paired ? LETTERS.filter((_, side) => state.units[side] === item.index) : [];
  find(".letter", row)?.remove();
  if (letters.length) row.append(make("span", "letter", letters.join("")));
}

// Of two images compared, each may show the map of its own class: both have the picture's name in common.
function labelOf(picture) {
  const other = comparing() && (paired ? likeIn(others, picture) : others.find(({ view, name }) => view === picture.view && name === picture.name));
  return other && other.title !== picture.title ? picture.name : picture.title || picture.name;
}

function drawLayer(picture, row) {
  const { layer } = picture;
  const text = make("span", "two");
  const label = labelOf(picture);
  const numbered = layer && label.match(/^(\d+) (.+)$/s);
  text.append(...cutName(numbered ? numbered[2] : label, "name"));
  const line = make("span", "line");
  line.append(make("span", "note", layer ? [layer.type, channelsOn(picture) ?? shape(layer)].filter(Boolean).join(" \u00b7 ") : `${picture.width} \u00d7 ${picture.height} pixels`));
  text.append(line);
  text.title = visible(label);
  if (layer) row.append(make("span", "number", numbered ? numbered[1] : layer.index));
  row.append(text);
  const dead = layerOverall(picture)?.dead.length;
  if (picture.only !== undefined) line.append(make("span", "badge", `only in ${run.runs[picture.only].name}`));
  if (dead) line.append(Object.assign(make("span", "badge", `${dead} dead`), { title: `Channels with one value everywhere, ${inEachImage()}` }));
}

// Gradients and class maps have their own numbering, and a layer may have several.
function pictureLike({ name, layer }, view) {
  const ofView = known.filter((picture) => picture.view === view);
  return ofView.find((picture) => picture.name === name)
    ?? ofView.find((picture) => withoutNumber(picture.name) === withoutNumber(name))
    ?? ofView.find((picture) => layer && picture.layer?.name === layer.name && picture.strips?.channels.includes(state.channel))
    ?? ofView.find((picture) => layer && picture.layer?.name === layer.name);
}

function nearest(view) {
  for (const choice of chosen) {
    const like = pictureLike(choice, view);
    if (like) return like;
  }
  return firstOf(known.filter((picture) => picture.view === view));
}

// Of two runs, one that both have.
const firstOf = (pictures) => pictures.find(({ only }) => only === undefined) ?? pictures[0];

// A fallback is not a choice.
function rememberChoice() {
  const shown = known.find(isShown);
  if (!shown || nearest(shown.view) === shown) return;
  const { name, layer } = shown;
  chosen = [{ name, layer }, ...chosen.filter((choice) => choice.name !== name)];
}

function returnToChoice() {
  const like = viewChosen && chosen.length ? pictureLike(chosen[0], state.view) : null;
  if (like) state.name = like.name;
}

function chooseImage(item, other) {
  if (paired) return showPair(item.index);
  const side = other ? 1 - state.side : state.side;
  if (other && !comparing()) return compareWith(item.index);
  state.units[side] = item.index;
  update();
}

function showPair(index) {
  state.units = [index, index];
  update();
}

function chooseLayer(picture) {
  Object.assign(state, { name: picture.name, view: picture.view });
  viewChosen = false;
  update();
}

function chooseView(view) {
  const picture = nearest(view);
  if (!picture && !(view === TOP && run.top)) return;  // another image without it is being loaded
  Object.assign(state, { view, name: picture?.name ?? null });
  viewChosen = true;
  layers.filter.value = "";
  update();
}

function compareWith(index) {
  state.beside = null;
  state.steps[1] = stepBeside(index);
  state.units[1] = index;
  state.side = 1;
  update();
}

// What is shown beside the view: the chosen one, unless that is the view itself.
function besideView() {
  if (viewsShown().includes(state.beside) && state.beside !== state.view) return state.beside;
  return viewsOf(known).find((view) => view !== state.view) ?? null;
}

function chooseBeside(view) {
  state.beside = view;
  update();
}

function toggleBeside() {
  if (paired || viewsShown().length < 2) return;
  state.units[1] = null;
  state.side = 0;
  chooseBeside(besides() ? null : "input");
}

function chooseOrder(order) {
  state.order = order || null;
  update();
}

const canCompare = () => !paired && (run.units.length > 1 || isSeries(run.units[0]));

// With the next image, or the last one with the one before it; a single one at two steps.
function toggleCompare() {
  if (!canCompare()) return;
  if (!comparing()) return compareWith(state.units[0] + 1 < run.units.length ? state.units[0] + 1 : Math.max(0, state.units[0] - 1));
  state.units[1] = null;
  state.side = 0;
  update();
}

function changeSide(side) {
  state.side = comparing() && !paired ? side : 0;
  update();
}
