// Before the first paint: the theme that was chosen here, else the system's.
(function () {
  var chosen = null;
  try {
    chosen = localStorage.getItem("tidemill.theme");
  } catch (error) {
    chosen = null;
  }
  var dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
