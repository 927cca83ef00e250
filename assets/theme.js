// The chosen colours, before anything is drawn. "system" leaves the choice to the style sheet.
(() => {
  const chosen = localStorage.getItem("octavo-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
