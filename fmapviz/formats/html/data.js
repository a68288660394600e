// @ts-check
// Load data and pictures on demand: from files beside the page, or from the page itself if it is a single file.

import { report } from "./registry.js";
import { findAll, make, run, say, withoutNumber, words } from "./text.js";

/** @import { Numbers, Packed, Picture, Unit } from "./page.d.ts" */

// A page opened from a file may not fetch, but it may load scripts: data are scripts that call one of these functions.
/** @type {WeakMap<object, any>} */
const delivered = new WeakMap();
/** @type {(data: unknown) => void} */
const deliver = (data) => { delivered.set(document.currentScript, data); };
window.fmapviz = Object.freeze({ unit: deliver, statistics: deliver, curves: deliver, pixels: deliver });

const CACHED_UNITS = 20;

/** @type {Record<string, string>} */
const OF = {
  maps: "output", mean: "output", max: "output", pca: "output", histogram: "output",
  inputs: "input", grads: "gradient", "grad-inputs": "input gradient", attention: "attention",
};

// Files inside the page, by their addresses.
/** @type {Map<string | undefined, HTMLElement>} */
export const embedded = new Map(findAll("script[data-file]").map((file) => [file.dataset.file, file]));

/** @type {(href: string, options?: { charset?: string }) => Promise<any>} */
export function loadScript(href, { charset = "" } = {}) {
  const inside = embedded.get(href);
  if (inside) return Promise.resolve(JSON.parse(inside.textContent));
  return new Promise((resolve, reject) => {
    const script = make("script");
    if (charset) script.charset = charset;
    script.src = href;
    script.onload = () => {
      script.remove();
      if (delivered.has(script)) resolve(delivered.get(script));
      else reject(new Error(`${decode(href)} is damaged: run the same command with --repair to write it again.`));
    };
    script.onerror = () => {
      script.remove();
      reject(new Error(`${decode(href)} cannot be read. It must lie beside this page, where the run wrote it.`));
    };
    document.head.append(script);
  });
}

/** @type {(href: string) => string} */
export const pictureAddress = (href) => (embedded.has(href) ? `data:image/png;base64,${embedded.get(href).textContent}` : href);

/** @type {(href: string) => Promise<HTMLImageElement>} */
export async function loadPicture(href) {
  const image = new Image();
  await new Promise((resolve, reject) => {
    image.onload = resolve;
    image.onerror = () => reject(new Error(`${decode(href)} cannot be read. It must lie where the run wrote it.`));
    image.src = pictureAddress(href);
  });
  await image.decode().catch(() => {});  // it is loaded, and appears a moment later at worst
  return image;
}

/** @type {(href: string) => string} */
function decode(href) {
  try {
    return decodeURIComponent(href).replace("./", "");
  } catch {
    return href;
  }
}

// "./" makes a name such as "javascript:x.png" a path, encoded or not. An object store may have the file under another name.
/** @type {(href: string) => string} */
export const address = (href) => `./${run.objects?.[href] ?? href}`;
/** @type {Map<string, Promise<Unit>>} */
const cache = new Map();

/** @type {(href: string) => Promise<Unit>} */
export function loadUnit(href) {
  const loading = cache.get(href) ?? loadScript(address(`${href}report.js`)).then((unit) => prepare(unit, href));
  cache.delete(href);
  cache.set(href, loading);  // a map keeps the order of insertion: the first is the least recently used
  loading.catch(() => cache.delete(href));  // retried when it is shown again
  if (cache.size > CACHED_UNITS) cache.delete(cache.keys().next().value);
  return loading;
}

/** @type {(unit: Unit, href: string) => Unit} */
export function prepare(unit, href) {
  for (const picture of unit.pictures) {
    picture.src = address(href + picture.href);
    picture.pixels = address(`${href}pixels.js`);
    picture.words = words(picture.title || picture.name, picture.layer?.type ?? "");
    for (const listener of report.loaded) listener(picture, unit);
  }
  return unit;
}

// A run may have a unit of the model itself, which is the same for all images, or one for each step of a training.
/** @type {Map<string, Promise<Unit | null>>} */
const models = new Map();  // by address

/** @type {(href: string | null | undefined, about: string) => Promise<Unit | null> | null} */
export function loadModel(href, about) {
  if (!href) return null;
  const loading = models.get(href) ?? readModel(href, about);
  models.delete(href);
  models.set(href, loading);
  if (models.size > CACHED_UNITS) models.delete(models.keys().next().value);
  return loading;
}

/** @type {(href: string, about: string) => Promise<Unit | null>} */
async function readModel(href, about) {
  try {
    const unit = prepare(await loadScript(address(`${href}report.js`)), href);
    for (const picture of unit.pictures) picture.shared = about;
    return unit;
  } catch (error) {
    say(error.message);
    return null;
  }
}

/** @type {WeakMap<Packed, (row: number, column: number) => number>} */
const unpacked = new WeakMap();

// Rows of little-endian float32, on machines of either byte order.
/** @type {(holder: Packed, columns: number) => (row: number, column: number) => number} */
export function unpack(holder, columns) {
  if (!unpacked.has(holder)) {
    const bytes = Uint8Array.from(atob(holder.data), (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    unpacked.set(holder, (row, column) => view.getFloat32(4 * (row * columns + column), true));
  }
  return unpacked.get(holder);
}

/** @type {(holder: Packed, columns: number, column: number) => Numbers} */
export function numbersAt(holder, columns, column) {
  const at = unpack(holder, columns);
  const [minimum, maximum, mean, deviation, zeros, nonfinite] = [0, 1, 2, 3, 4, 5].map((row) => at(row, column));
  // Without a mean there is no deviation.
  return { minimum, maximum, mean, deviation: Number.isNaN(mean) ? NaN : deviation, zeros, nonfinite };
}

/** @type {<Of extends { name: string, of: string }>(layers: Of[], picture: Picture) => Of | null} */
export function layerAmong(layers, picture) {
  if (!picture.layer || !OF[picture.view]) return null;
  const behind = withoutNumber(picture.name).slice(picture.layer.name.length);  // ".top1" for a class
  const of = OF[picture.view] + behind.replace(".", " ");
  return layers.find((layer) => layer.name === picture.layer.name && (layer.of === of || layer.of === OF[picture.view])) ?? null;
}

// Pictures that are likely to be shown next, loaded and decoded ahead, by address.
/** @type {Map<string, Promise<HTMLImageElement>>} */
const ahead = new Map();

/** @type {(src: string) => Promise<HTMLImageElement>} */
export function takePicture(src) {
  const loading = ahead.get(src) ?? loadPicture(src);
  ahead.delete(src);  // an element can only be in one pane
  return loading;
}

/** @type {(wanted: Set<string>) => void} */
export function loadAhead(wanted) {
  for (const src of ahead.keys()) if (!wanted.has(src)) ahead.delete(src);
  for (const src of wanted) {
    if (ahead.has(src)) continue;
    const loading = loadPicture(src);
    loading.catch(() => ahead.delete(src));  // retried when it is shown
    ahead.set(src, loading);
  }
}

/** @type {(unit: Unit | null | undefined) => Picture | undefined} */
export const inputOf = (unit) => unit?.pictures?.find(({ view }) => view === "input");
