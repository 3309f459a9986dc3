// What the pages gain with JavaScript: copy buttons, menus that close, countdowns. They work without it.
"use strict";

function addCopyButtons(root) {
  for (const box of root.querySelectorAll("[data-copy]")) {
    if (box.querySelector(".copy")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(box.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    box.append(button);
  }
}

function closeMenus(except) {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (menu !== except) menu.open = false;
}

document.addEventListener("click", (event) => closeMenus(event.target.closest("details.menu")));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const menu = document.activeElement?.closest("details.menu");
  closeMenus(null);
  menu?.querySelector("summary").focus();
});
setInterval(() => {
  for (const left of document.querySelectorAll("[data-countdown]")) {
    left.dataset.countdown = Math.max(Number(left.dataset.countdown) - 1, 1);
    left.textContent = left.dataset.countdown;
  }
}, 1000);
addCopyButtons(document);
