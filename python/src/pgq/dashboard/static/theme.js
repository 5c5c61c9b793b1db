// Before anything is drawn: the colours that were chosen here.
try {
  const theme = localStorage.getItem("pgq-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // No storage, no choice.
}
