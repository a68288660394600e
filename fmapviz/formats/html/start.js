// The page as a whole: theme, buttons, start.

function toggleTheme() {
  const now = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  setTheme(now === "dark" ? "light" : "dark");
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("fmapviz-theme", theme);
  } catch { /* a page opened from a file may have no storage: then the choice lasts as long as the page */ }
}

function recallTheme() {
  try {
    const theme = localStorage.getItem("fmapviz-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* as above */ }
}

function listenToPage() {
  addEventListener("keydown", press);
  addEventListener("hashchange", followAddress);
  find("#compare").addEventListener("click", toggleCompare);
  find("#beside").addEventListener("click", toggleBeside);
  find("#order").addEventListener("change", () => chooseOrder(find("#order").value));
  find("#theme").addEventListener("click", toggleTheme);
  find("#unpin").addEventListener("click", unpin);
  find("#zoom").addEventListener("click", (event) => zoomBy(event.target.closest("button")?.dataset.zoom));
  for (const button of find("#pin").querySelectorAll("[data-step]")) button.addEventListener("click", () => pinNeighbour(Number(button.dataset.step)));
  find(".pinned").addEventListener("pointermove", cross);
  find(".pinned").addEventListener("pointerleave", cross);
  addEventListener("resize", () => showPinned());
  for (const button of document.querySelectorAll("[data-dialog]")) button.addEventListener("click", () => find(`#${button.dataset.dialog}`).showModal());
  for (const button of document.querySelectorAll("#changes [data-layer]")) button.addEventListener("click", () => goToChange(button.dataset.layer));
  for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
}

function showNothing() {
  arrange(1);
  const why = run.failures.length ? `None of ${count(run.failures.length, "image")} could be shown: see Run for the reason of each.` : "There is no image in this report yet.";
  panes[0].show({ error: why, own: [] });
}

async function start() {
  recallTheme();
  fillOrders();
  listenToPage();
  listenToSteps();
  listenToSwipe();
  find("#compare").disabled = !canCompare();
  run.units.forEach((item, index) => Object.assign(item, { index, words: words(item.unit, ...(item.predictions ?? [])) }));
  if (narrow.matches) for (const list of [images, layers]) list.expand(false);
  images.setItems(run.units);
  layers.setItems([]);
  if (!run.units.length) return showNothing();
  readAddress();
  await update();
  await Promise.all([loadStatistics(), loadCurves()]);
}

start();
