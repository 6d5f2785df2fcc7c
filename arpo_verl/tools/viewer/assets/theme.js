"use strict";
/* Light or dark before the first paint: what the reader chose, else what the system says. */
window.viewer = {};
{
  const KEY = "arpo-verl-theme";
  const root = document.documentElement;

  /** "light", "dark", or "auto": as the system. */
  viewer.theme = () => root.dataset.theme || "auto";

  viewer.setTheme = (theme) => {
    root.dataset.theme = theme;
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // A browser that keeps nothing for this page still shows the theme.
    }
    window.dispatchEvent(new Event("themechange"));
  };

  try {
    root.dataset.theme = localStorage.getItem(KEY) || "auto";
  } catch {
    root.dataset.theme = "auto";
  }
  // Paper is light; the charts' canvases must be drawn anew for it.
  let shown = null;
  window.addEventListener("beforeprint", () => {
    shown = root.dataset.theme;
    root.dataset.theme = "light";
    window.dispatchEvent(new Event("themechange"));
  });
  window.addEventListener("afterprint", () => {
    root.dataset.theme = shown;
    window.dispatchEvent(new Event("themechange"));
  });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    window.dispatchEvent(new Event("themechange")),
  );
}
