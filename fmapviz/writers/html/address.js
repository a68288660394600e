// The page's address, which encodes the image, view, layer and channel shown.

const SETTLED = 300;  // milliseconds: browsers refuse to change the address as often as a held key repeats

let written = "";
let settling = 0;

function addressOf() {
  const parts = { image: run.units[state.units[0]].unit };
  if (comparing()) parts.with = run.units[state.units[1]].unit;
  Object.assign(parts, { view: state.view ?? "", layer: state.name ?? "" });
  if (besides()) parts.beside = besideView();
  if (state.order) parts.order = state.order;
  if (state.channel !== null) parts.channel = state.channel;
  return new URLSearchParams(parts).toString();
}

// The canonical form of the address that was read. Writing it out in place of an empty or hand-typed address would add an
// entry to the history, and the back button would never get past it.
let understood = null;

function writeAddress() {
  clearTimeout(settling);
  understood ??= addressOf();
  settling = setTimeout(() => {
    const now = addressOf();
    if (now === understood) return;
    written = understood = now;
    location.hash = now;
  }, SETTLED);
}

function readAddress() {
  written = location.hash.slice(1);
  understood = null;
  const parts = new URLSearchParams(written);
  const unit = (name) => run.units.findIndex((item) => item.unit === parts.get(name));
  const other = unit("with");
  const channel = /^\d+$/.test(parts.get("channel") ?? "") ? Number(parts.get("channel")) : null;
  state.units = [Math.max(0, unit("image")), other < 0 ? null : other];
  viewChosen = false;
  const order = parts.get("order");
  state.order = order in ORDERS ? order : null;
  state.beside = other < 0 ? parts.get("beside") : null;
  Object.assign(state, { side: other < 0 ? 0 : state.side, view: parts.get("view") || null, name: parts.get("layer") || null, channel });
}

function followAddress() {
  if (!run.units.length || location.hash.slice(1) === written) return;
  clearTimeout(settling);
  readAddress();
  update();
}
