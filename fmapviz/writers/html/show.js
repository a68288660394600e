// Loading what is chosen and showing it in the panes.

const SAID_ELSEWHERE = new Set(["Layer", "Type", "Shape", "Range", "Model", "Weights", "Image", "Software", "Predicted"]);

const factOf = (picture, name) => picture.facts.find(([key]) => key === name)?.[1] ?? "";

let busy = false;
let stale = false;

// While a picture loads only the latest choice is remembered, so that a held key does not queue pictures never shown.
async function update() {
  // At once: the next key continues from here even if this is not shown yet.
  images.select(run.units[state.units[state.side]]);
  rememberChoice();
  showLayers();
  stale = true;
  if (busy) return;
  busy = true;
  find("#panes").setAttribute("aria-busy", true);
  try {
    while (stale) {
      stale = false;
      await show();
    }
    writeAddress();
  } finally {  // malformed data must not break the whole page
    busy = false;
    find("#panes").setAttribute("aria-busy", false);
  }
}

async function show() {
  const numbers = comparing() ? state.units : [state.units[0]];
  await loadModel();
  const sides = await Promise.all(numbers.map(lookUp));
  known = [...(sides[0].unit.pictures ?? []), ...(modelUnit?.pictures ?? [])].sort((one, other) => rank(one) - rank(other));
  if (state.view === null || state.name === null) chooseFirst();
  returnToChoice();
  rememberChoice();
  const found = await Promise.all(sides.map(findPicture));
  const same = panes.length === found.length && found.every(({ picture }, side) => sameView(picture, panes[side].picture));
  arrange(found.length);
  panes.forEach((pane, side) => pane.show(found[side], found.length === 1));
  if (same && !camera.fitted) place();
  else fit();
  describe(found);
}

// The input first, then the views in the order in which they were requested.
const rank = ({ view }) => (run.views ?? []).indexOf(view);

async function lookUp(index) {
  const { unit, href } = run.units[index];
  try {
    return { unit: { ...(await loadUnit(href)), unit } };
  } catch (error) {
    return { unit: { unit }, error: error.message };
  }
}

function chooseFirst() {
  const first = known.find(({ view }) => (state.view === null ? view !== "input" : view === state.view)) ?? known[0];
  if (first) Object.assign(state, { view: first.view, name: first.name });
}

async function findPicture({ unit, error }) {
  const picture = [...(unit.pictures ?? []), ...(modelUnit?.pictures ?? [])].find(isShown);
  if (!picture) {
    const missing = `${visible(unit.unit)} has no picture ${visible(state.name)} in the view ${visible(state.view)}.`;
    return { unit, error: error ? visible(error) : missing };
  }
  try {
    return { unit, picture, image: await loadPicture(picture.src) };
  } catch (failure) {
    return { unit, error: visible(failure.message) };
  }
}

// The same picture of another image is shown at the same position.
function sameView(picture, before) {
  return picture && before && picture.view === before.view && picture.name === before.name;
}

function arrange(amount) {
  const focused = document.activeElement?.closest(".pane");
  while (panes.length > amount) panes.pop().root.remove();
  if (focused && !focused.isConnected) panes[0].stage.focus();
  while (panes.length < amount) panes.push(new Pane(panes.length));
  // Moving an existing pane would take the focus from it.
  for (const { root } of panes) if (!root.isConnected) find("#panes").append(root);
  document.body.classList.toggle("comparing", amount > 1);
  find("#compare").setAttribute("aria-pressed", amount > 1);
}

function describe(found) {
  showLayers();
  const { picture } = found.find((side) => side.picture) ?? {};
  const label = picture ? picture.title || picture.name : state.name ?? "";
  find("#title").textContent = visible(label);
  const range = picture && found.length === 1 ? factOf(picture, "Range") : "";
  const kind = picture?.layer ? [picture.layer.type, shape(picture.layer), range] : [picture ? `${picture.width} \u00d7 ${picture.height} pixels` : ""];
  find("#kind").textContent = kind.filter(Boolean).map(visible).join(" \u00b7 ");
  const common = new Set(run.facts.map(([name]) => name));
  // With two images, only the facts that both share.
  const holds = (name, value) => found.every((side) => !side.picture || factOf(side.picture, name) === value);
  const facts = (picture?.facts ?? []).filter(([name, value]) => !SAID_ELSEWHERE.has(name) && !common.has(name) && holds(name, value));
  find("#about").replaceChildren(...facts.map(([name, value]) => {
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd", "", value));
    return pair;
  }));
  const names = found.map(({ unit }) => visible(unit.unit)).join(" and ");
  document.title = `${visible(label)} - ${names} - ${visible(run.title)}`;
  point(null);
  showPinned();
  say([`${label}, ${names}`, ...found.map(({ error }) => error)].filter(Boolean).join(". "));
}

let listed = null;  // the pictures that the list was made from

function showLayers() {
  const views = [...new Set(known.map(({ view }) => view))];
  showViews(views);
  const ofView = known.filter(({ view }) => view === state.view);
  // Rows are rebuilt only if the pictures differ.
  const key = JSON.stringify([overall !== null, state.view, ofView.map(({ name, title, layer }) => [name, title, layer])]);
  if (key !== listed) layers.setItems(ofView);
  listed = key;
  layers.select(layers.items.find(isShown) ?? null);
}

function showViews(views) {
  const field = find("#views");
  const names = views.join("\n");
  if (field.dataset.names !== names) {
    field.dataset.names = names;
    for (const label of field.querySelectorAll("label")) label.remove();
    field.append(...views.map(viewChoice));
  }
  field.hidden = views.length < 2;
  for (const input of field.querySelectorAll("input")) input.checked = input.value === state.view;
}

function viewChoice(view) {
  const label = make("label");
  const input = make("input");
  Object.assign(input, { type: "radio", name: "view", value: view });
  input.addEventListener("change", () => chooseView(view));
  // After a click the arrow keys change the layer; with keyboard focus they still choose the view.
  label.addEventListener("pointerup", () => setTimeout(() => layers.box.focus()));
  label.append(input, visible(view));
  return label;
}
