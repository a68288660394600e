// Statistics over the run.

async function loadStatistics() {
  if (!run.statistics) return;
  try {
    overall = await loadScript(address(run.statistics));
  } catch (error) {
    find("#statistics .summary").textContent = visible(error.message);
    return;
  }
  showLayers();
  showPinned();
  showStatistics();
}

function showStatistics() {
  const dead = overall.layers.filter(({ constant }) => constant.length);
  const amount = dead.reduce((sum, { constant }) => sum + constant.length, 0);
  find("#statistics .summary").textContent = amount
    ? `${count(amount, "channel")} in ${dead.length} of ${count(overall.layers.length, "layer")} never ${amount === 1 ? "varies" : "vary"} over ${count(overall.images, "image")}.`
    : `Every channel of ${count(overall.layers.length, "layer")} varies over ${count(overall.images, "image")}.`;
  const table = make("table");
  const head = table.createTHead().insertRow();
  head.append(...["Layer", "Values", "Type", "Never vary"].map((text) => Object.assign(make("th", "", text), { scope: "col" })));
  const body = table.createTBody();
  for (const layer of overall.layers) body.append(statisticsRow(layer));
  find("#statistics .table").replaceChildren(table);
}

function statisticsRow(layer) {
  const row = make("tr");
  const go = Object.assign(make("button", "", layer.name), { type: "button" });
  go.addEventListener("click", () => goToLayer(layer));
  const dead = layer.constant.length;
  const cells = [go, layer.of, layer.type, make("span", dead ? "constant" : "", `${dead} of ${layer.channels}`)];
  for (const content of cells) {
    const cell = row.insertCell();
    cell.append(typeof content === "string" ? visible(content) : content);
  }
  return row;
}

function goToLayer(layer) {
  const pictures = known.filter((each) => layerOverall(each) === layer);
  const picture = pictures.find(({ view }) => view === state.view) ?? pictures[0];
  find("#statistics").close();
  if (picture) chooseLayer(picture);
  else say(`There is no picture of ${layer.name} in this report.`);
}
