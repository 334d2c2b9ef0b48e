// Before the first paint: the theme that was chosen here, else the system's. For the console and for pages of
// applications; on these a button with data-theme-switch changes it.
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
      // A browser that keeps nothing shows it until the page is left.
    }
  });
})();
