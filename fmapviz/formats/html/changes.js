// The table of the layers of a comparison, ranked by how much they change.

import { chooseLayer } from "./choose.js";
import { pictures, state } from "./state.js";
import { find, say } from "./text.js";

const buttons = [...document.querySelectorAll("#changes [data-layer]")];

function goToChange(name) {
  const those = pictures.known.filter(({ layer }) => layer?.name === name);
  find("#changes").close();
  const picture = those.find(({ view }) => view === state.view) ?? those[0];
  if (!picture) return say(`There is no picture of ${name} in this report.`);
  chooseLayer(picture);
}

export function register(report) {
  report.preferred.push(() => buttons[0]?.dataset.layer);  // the one that changes most
  for (const button of buttons) button.addEventListener("click", () => goToChange(button.dataset.layer));
}
