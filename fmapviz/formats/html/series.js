// Series: an image at the steps of a training, and the slider that moves through them.

const FILM = { whole: 12000, shortest: 100, longest: 400 };  // milliseconds: of all steps, and of each

const hasSeries = run.units.some(({ steps }) => steps);
const isSeries = (item) => (item?.steps?.length ?? 0) > 1;
const shownItem = () => run.units[state.units[state.side]];

// The position of the nearest step; of the last one for null.
function nearestStep(steps, wanted) {
  if (wanted === null) return steps.length - 1;
  const distance = (at) => Math.abs(steps[at].step - wanted);
  return steps.reduce((best, _, at) => (distance(at) < distance(best) ? at : best), 0);
}

const positionAt = (item, side) => nearestStep(item.steps, state.steps[side]);

const stepAt = (item, side) => item?.steps?.[positionAt(item, side)] ?? null;

// Of two runs both show the same step, or none if one of them lacks it.
function stepOn(side) {
  const step = stepAt(run.units[state.units[side]], side);
  return paired ? itemOn(side)?.steps?.find((each) => each.step === step?.step) ?? null : step;
}

function chooseStep(position) {
  const item = shownItem();
  if (!item.steps) return;
  const { step } = item.steps[clamp(position, 0, item.steps.length - 1)];
  // Two images are moved together; of one image at two steps the chosen one is.
  const together = paired || (comparing() && state.units[0] !== state.units[1]);
  state.steps = state.steps.map((other, side) => (together || side === state.side ? step : other));
  update({ still: true });
}

function moveStep(by) {
  pause();
  if (shownItem().steps) chooseStep(positionAt(shownItem(), state.side) + by);
}

// Of the image that is shown already another step is shown beside it.
function stepBeside(index) {
  const { steps } = run.units[index];
  if (index !== state.units[0] || !steps) return state.steps[0];
  return steps[positionAt(run.units[index], 0) === 0 ? steps.length - 1 : 0].step;
}

// The model at the step of an image; the last one beside an image that has none.
function modelAt(step, side) {
  const of = paired ? run.runs[side] : run;
  if (!of.models) return loadModel(of.model, "The model, the same for all images");
  const model = of.models[nearestStep(of.models, step?.step ?? null)];
  return loadModel(model.href, `The model, step ${model.step}`);
}

let playing = 0;

function togglePlaying() {
  if (playing) return pause();
  const item = shownItem();
  if (!isSeries(item)) return;
  const { length } = item.steps;
  if (positionAt(item, state.side) === length - 1) chooseStep(0);
  playing = setInterval(playNext, clamp(FILM.whole / length, FILM.shortest, FILM.longest));
  showSteps();
}

// A step that is still loading delays the next one.
function playNext() {
  const item = shownItem();
  const next = item.steps ? positionAt(item, state.side) + 1 : Infinity;
  if (next >= (item.steps?.length ?? 0)) pause();
  else if (!busy) chooseStep(next);
}

function pause() {
  if (!playing) return;
  clearInterval(playing);
  playing = 0;
  showSteps();
  writeAddress();
}

function showSteps() {
  if (!hasSeries) return;
  const item = shownItem();
  document.body.classList.toggle("stepping", Boolean(item.steps));
  find("#steps").hidden = !item.steps;
  if (!item.steps) return;
  const { length } = item.steps;
  const at = positionAt(item, state.side);
  const text = (position) => `${wordOf(item)} ${item.steps[position].step} (${position + 1} of ${length})`;
  const slider = find("#step");
  Object.assign(slider, { max: length - 1, value: at, disabled: length < 2, ariaValueText: text(at), ariaLabel: item.word ? "Frame of the film" : "Step of the training" });
  const shown = find("#step-shown");
  shown.textContent = `${comparing() && !paired && state.units[0] === state.units[1] ? `${LETTERS[state.side]}: ` : ""}${text(at)}`;
  shown.style.minWidth = `${text(length - 1).length + (comparing() ? 3 : 0)}ch`;
  const button = find("#play");
  Object.assign(button, { disabled: length < 2, ariaLabel: playing ? "Pause" : "Play", title: `${playing ? "Pause" : "Play"} (p)` });
  button.classList.toggle("playing", Boolean(playing));
}

// The facts of a step have as much room as those of any other, and are scrolled if that is too little.
function holdFacts() {
  const facts = find(".about > div");
  const scrolls = document.body.classList.contains("stepping") && facts.scrollHeight > facts.clientHeight;
  if (scrolls) Object.assign(facts, { tabIndex: 0, role: "group", ariaLabel: "About the picture" });
  else for (const name of ["tabindex", "role", "aria-label"]) facts.removeAttribute(name);
}

// The pictures of the neighbouring steps, by their addresses: loaded and decoded before they are shown.
const ahead = new Map();

function takePicture(src) {
  const loading = ahead.get(src) ?? loadPicture(src);
  ahead.delete(src);  // an element can only be in one pane
  return loading;
}

async function loadNeighbours() {
  if (!hasSeries) return;
  const wanted = new Set();
  for (const [at, { picture }] of panes.entries()) {
    const side = comparing() ? at : 0;
    const [{ steps }, item] = [run.units[state.units[side]], itemOn(side)];
    if (!picture || !item?.steps) continue;
    const position = positionAt({ steps }, side);
    for (const next of [steps[position + 1], steps[position - 1]]) {
      const step = next && item.steps.find((each) => each.step === next.step);
      if (!step) continue;
      const loading = loadUnit(step.href).then((loaded) => ofStep(loaded, item, step), () => null);
      const units = await Promise.all([loading, modelAt(step, side)]);
      const like = units.flatMap((unit) => unit?.pictures ?? []).find((each) => each.view === picture.view && each.name === picture.name);
      if (like && !like.histogram) wanted.add(like.src);
    }
  }
  for (const src of ahead.keys()) if (!wanted.has(src)) ahead.delete(src);
  for (const src of wanted) {
    if (ahead.has(src)) continue;
    const loading = loadPicture(src);
    loading.catch(() => ahead.delete(src));  // retried when it is shown
    ahead.set(src, loading);
  }
}

// All steps have the same input, and show one file of it.
function ofStep(loaded, item, step) {
  if (!item.steps || step.input) return loaded;
  const shared = (picture) => (picture.view === "input" ? { ...picture, src: address(item.href + picture.href) } : picture);
  return { ...loaded, pictures: loaded.pictures.map(shared) };
}

function listenToSteps() {
  if (!hasSeries) return;
  find("#play").addEventListener("click", togglePlaying);
  find("#step").addEventListener("input", () => {
    pause();
    chooseStep(Number(find("#step").value));
  });
}
