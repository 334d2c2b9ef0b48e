// Applies the chosen theme, or else the system's, before the first paint. Used by the console and by pages of
// applications, where a button with data-theme-switch changes it.
(function () {
  var system = matchMedia("(prefers-color-scheme: dark)");

  function isDark() {
    var chosen = null;
    try {
      chosen = localStorage.getItem("tidemill.theme");
    } catch (error) {
      chosen = null;
    }
    return chosen ? chosen === "dark" : system.matches;
  }

  function show() {
    document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  }

  show();
  system.addEventListener("change", show);
  addEventListener("storage", show);
  addEventListener("click", function (event) {
    if (!event.target.closest || !event.target.closest("[data-theme-switch]")) return;
    var next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("tidemill.theme", next);
    } catch (error) {
      // Without storage the choice lasts until the page is closed.
    }
  });
})();
