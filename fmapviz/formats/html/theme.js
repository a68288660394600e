// @ts-check
// Light or dark.

export function toggleTheme() {
  const now = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  setTheme(now === "dark" ? "light" : "dark");
}

/** @type {(theme: string) => void} */
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("fmapviz-theme", theme);
  } catch { /* a page opened from a file may have no storage: then the choice lasts as long as the page */ }
}

export function recallTheme() {
  try {
    const theme = localStorage.getItem("fmapviz-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* as above */ }
}
