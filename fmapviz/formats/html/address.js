// @ts-check
// The page's address, which encodes the image, view, layer and channel shown.

import { besideView, choice } from "./choose.js";
import { ORDERS } from "./order.js";
import { report } from "./registry.js";
import { besides, comparing, state, update } from "./state.js";
import { stepAt } from "./steps.js";
import { paired, run } from "./text.js";

const SETTLED = 300;  // milliseconds: browsers refuse to change the address as often as a held key repeats

let written = "";
let settling = 0;

function addressOf() {
  /** @type {Record<string, any>} */
  const parts = { image: run.units[state.units[0]].unit };
  const step = stepAt(run.units[state.units[0]], 0);
  if (step) parts.step = step.step;
  if (comparing() && !paired) {
    const other = run.units[state.units[1]];
    parts.with = other.unit;
    if (other.steps) parts["with-step"] = stepAt(other, 1).step;
  }
  Object.assign(parts, { view: state.view ?? "", layer: state.name ?? "" });
  if (besides()) parts.beside = besideView();
  for (const { name, write } of report.addressParts) {
    const value = write();
    if (value !== null) parts[name] = value;
  }
  if (state.order) parts.order = state.order;
  if (state.channel !== null) parts.channel = state.channel;
  return new URLSearchParams(parts).toString();
}

// The canonical form of the address that was read. Replacing an empty or hand-typed address by it would add an entry to the
// history, and the back button would never get past it.
/** @type {string | null} */
let understood = null;

/** @type {(address: string) => string} */
function withoutDetails(address) {
  const parts = new URLSearchParams(address);
  for (const name of ["step", "with-step", ...report.addressParts.map(({ name }) => name)]) parts.delete(name);
  return parts.toString();
}

// A change of the step or the divider replaces the last entry of the history: the back button leads to the previous image, view or layer.
export function writeAddress() {
  clearTimeout(settling);
  if (state.playing) return;
  understood ??= addressOf();
  settling = setTimeout(() => {
    const now = addressOf();
    if (now === understood) return;
    const onlyDetails = withoutDetails(now) === withoutDetails(understood);
    written = understood = now;
    if (onlyDetails) location.replace(`#${now}`);
    else location.hash = now;
  }, SETTLED);
}

export function readAddress() {
  written = location.hash.slice(1);
  understood = null;
  const parts = new URLSearchParams(written);
  /** @type {(name: string) => number} */
  const unit = (name) => run.units.findIndex((item) => item.unit === parts.get(name));
  const other = unit("with");
  /** @type {(name: string) => number | null} */
  const whole = (name) => (/^\d+$/.test(parts.get(name) ?? "") ? Number(parts.get(name)) : null);
  const channel = whole("channel");
  state.steps = [whole("step"), whole("with-step")];
  // The default image is the first that both runs have.
  const first = paired ? run.units.findIndex(({ of }) => of[0] && of[1]) : 0;
  const image = unit("image") < 0 ? first : unit("image");
  state.units = [Math.max(0, image), other < 0 || paired ? null : other];
  if (paired) {
    state.units[1] = state.units[0];
    state.steps[1] = state.steps[0];
  }
  choice.ofView = false;
  const order = parts.get("order");
  state.order = order in ORDERS ? order : null;
  for (const { name, read } of report.addressParts) read(parts.get(name) ?? "");
  state.beside = other < 0 && !paired ? parts.get("beside") : null;
  Object.assign(state, { side: other < 0 ? 0 : state.side, view: parts.get("view") || null, name: parts.get("layer") || null, channel });
}

export function followAddress() {
  if (!run.units.length || location.hash.slice(1) === written) return;
  clearTimeout(settling);
  readAddress();
  update();
}
