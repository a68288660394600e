// @ts-check
// Cameras: zoom and position. Panes whose pictures cover the same area share one.

import { report } from "./registry.js";
import { comparing, panes, swiping } from "./state.js";
import { clamp, find } from "./text.js";

/** @import { Camera, Picture } from "./page.d.ts" */
/** @import { Pane } from "./pane.js" */

const LARGEST_SCALE = 64;
const MARGIN = 24;  // of a fitted picture, both sides together

// `scale`: device pixels per pixel of the first picture; `x`, `y`: the point of the picture at the centre of the pane,
// relative to its width and height.
/** @type {() => Camera} */
export const newCamera = () => ({ scale: 1, x: 0.5, y: 0.5, fitted: true });

// The pane that keys and buttons zoom and move: the last one that had the focus.
/** @type {() => Pane | undefined} */
const activePane = () => panes.find((pane) => pane.picture && pane.active) ?? panes.find(({ picture }) => picture);
/** @type {() => Set<Camera>} */
const cameras = () => new Set(panes.filter(({ picture }) => picture).map(({ camera }) => camera));

export function place() {
  for (const pane of panes) pane.place();
  for (const listener of report.placed) listener();
  find("#zoom output").textContent = `${Number(((activePane()?.camera.scale ?? 1) * 100).toPrecision(3))} %`;
}

/** @type {(camera: Camera, scale: number) => void} */
export function setScale(camera, scale) {
  camera.scale = clamp(scale, Math.min(1, fittingScale(camera)) / 4, LARGEST_SCALE);
  camera.fitted = false;
}

/** @type {(camera: Camera) => number} */
function fittingScale(camera) {
  const scales = panes.filter((pane) => pane.picture && pane.camera === camera).map((pane) => {
    const { width, height } = pane.picture;
    const across = (pane.viewport.clientWidth - MARGIN) / width;
    const fitting = devicePixelRatio * (pane.picture.behaviour ? across : Math.min(across, (pane.viewport.clientHeight - MARGIN) / (height * pane.stretch())));
    return fitting * camera.scale / pane.scale();
  });
  const scale = Math.max(Math.min(...scales, LARGEST_SCALE), 0.001);
  return scale > 1 ? Math.floor(scale) : scale;
}

/** @type {(fitted?: Iterable<Camera>) => void} */
export function fit(fitted = cameras()) {
  for (const camera of fitted) {
    Object.assign(camera, { scale: fittingScale(camera), x: 0.5, y: 0.5, fitted: true });
    const page = panes.find((pane) => pane.picture?.behaviour && pane.camera === camera);
    if (page) camera.y = page.picture.behaviour.middle(page, MARGIN / 2);
  }
  place();
}

export function refit() {
  fit([...cameras()].filter(({ fitted }) => fitted));
}

// A grid beside a heat map does not move with it, since equal positions in them are unrelated.
export function linkCameras() {
  const [first, second] = panes;
  if (second) second.camera = comparing() || swiping() || coverTheSame(first.picture, second.picture) ? first.camera : second.ownCamera;
}

/** @type {(one: Picture | null, other: Picture | null) => boolean} */
function coverTheSame(one, other) {
  if (!one || !other) return true;
  const elongation = (one.width / one.height) / (other.width / other.height);
  const tiled = one.tiles?.columns === other.tiles?.columns && one.tiles?.count === other.tiles?.count;
  return tiled && Math.abs(elongation - 1) < 0.02;
}

// Buttons and keys step through whole numbers, at which all pixels become squares of equal size.
/** @type {(direction: string | undefined) => void} */
export function zoomBy(direction) {
  const camera = activePane()?.camera;
  if (!camera || !direction) return;
  if (direction === "fit") return fit();
  const steps = [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];
  const next = direction === "in" ? steps.find((step) => step > camera.scale * 1.001) : steps.findLast((step) => step < camera.scale * 0.999);
  setScale(camera, next ?? camera.scale);
  place();
}

/** @type {Record<string, [number, number]>} */
export const PAN = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** @type {(key: string) => void} */
export function pan(key) {
  const pane = activePane();
  if (pane) pane.shift((PAN[key][0] * 60) / pane.zoom, (PAN[key][1] * 60) / pane.zoomDown);
}
