// colour.js: one scale for entropy and probability, from the stops in `data.ramp` (static.py). Its lightness goes one way,
// from the page's own background (sure) to its opposite (unsure), so it reads without hue, in print and in both themes.

const LEVELS = 40;

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const luminance = (rgb) => rgb.map((v) => linear(v / 255)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);

// stops -> [{back, ink}]; at this luminance black and white ink have equal contrast, 4.6 to 1, on either side more
export function shades(stops) {
  return Array.from({ length: LEVELS + 1 }, (_, level) => {
    const x = (level / LEVELS) * (stops.length - 1),
      i = Math.min(Math.floor(x), stops.length - 2);
    const a = channels(stops[i]),
      b = channels(stops[i + 1]);
    const rgb = a.map((v, k) => Math.round(v + (b[k] - v) * (x - i)));
    return { back: `rgb(${rgb.join(" ")})`, ink: luminance(rgb) > 0.179 ? "#000" : "#fff" };
  });
}

// Value in [0, 1] -> level. Square root: most of a canvas lives near zero, and there the differences matter.
export const levelOf = (x) => Math.round(LEVELS * Math.sqrt(Math.min(1, Math.max(0, x))));

export function isDark(el) {
  const match = getComputedStyle(el).backgroundColor.match(/[\d.]+/g);
  return match ? luminance(match.slice(0, 3).map(Number)) < 0.2 : false;
}
