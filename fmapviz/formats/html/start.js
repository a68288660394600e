// @ts-check
// Start the page, and connect its buttons.

import { followAddress, readAddress } from "./address.js";
import { zoomBy } from "./camera.js";
import { canCompare, chooseOrder, toggleBeside, toggleCompare } from "./choose.js";
import { press } from "./keys.js";
import { images, layers } from "./lists.js";
import { fillOrders } from "./order.js";
import { Pane } from "./pane.js";
import { cross, leave, pinNeighbour, showPinned, unpin } from "./pins.js";
import { report } from "./registry.js";
import { arrange, showChosen } from "./show.js";
import { listenToChoices, panes, update } from "./state.js";
import { around, count, find, findAll, narrow, run, words } from "./text.js";
import { recallTheme, toggleTheme } from "./theme.js";

/** @type {(name: string) => void} */
function openDialog(name) {
  /** @type {HTMLDialogElement} */
  const dialog = find(`#${name}`);
  dialog.showModal();
}

function listenToPage() {
  addEventListener("keydown", press);
  addEventListener("hashchange", followAddress);
  find("#compare").addEventListener("click", toggleCompare);
  find("#beside").addEventListener("click", toggleBeside);
  find("#order").addEventListener("change", () => chooseOrder(/** @type {HTMLSelectElement} */ (find("#order")).value));
  find("#theme").addEventListener("click", toggleTheme);
  find("#unpin").addEventListener("click", unpin);
  find("#zoom").addEventListener("click", (event) => zoomBy(around(event, "button")?.dataset.zoom));
  for (const button of findAll("[data-step]", find("#pin"))) button.addEventListener("click", () => pinNeighbour(Number(button.dataset.step)));
  find(".pinned").addEventListener("pointermove", cross);
  find(".pinned").addEventListener("pointerleave", leave);
  addEventListener("resize", () => showPinned());
  for (const button of findAll("[data-dialog]")) button.addEventListener("click", () => openDialog(button.dataset.dialog));
  for (const button of findAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
}

function showNothing() {
  arrange(1);
  const why = run.failures.length ? `None of ${count(run.failures.length, "image")} could be shown: see Run for the reason of each.` : "There is no image in this report yet.";
  panes[0].show({ error: why, own: [] });
}

export async function start() {
  panes.push(new Pane(0));
  listenToChoices(showChosen);
  recallTheme();
  fillOrders();
  listenToPage();
  /** @type {HTMLButtonElement} */ (find("#compare")).disabled = !canCompare();
  run.units.forEach((item, index) => Object.assign(item, { index, words: words(item.unit, ...(item.predictions ?? [])) }));
  if (narrow.matches) for (const list of [images, layers]) list.expand(false);
  images.setItems(run.units);
  layers.setItems([]);
  if (!run.units.length) return showNothing();
  readAddress();
  await update();
  await Promise.all(report.opened.map((load) => load()));
}
