// What the theme leaves out for people who do not see a page or use no mouse; axe-core reports it.
"use strict";

addEventListener("DOMContentLoaded", () => {
  for (const heading of document.querySelectorAll("[role=heading]:not([aria-level])")) heading.setAttribute("aria-level", "2");
  document.querySelector("aside.sidebar-drawer")?.setAttribute("aria-label", "pages");
  document.querySelector("aside.toc-drawer")?.setAttribute("aria-label", "this page");
  for (const table of document.querySelectorAll(".table-wrapper")) if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
  if (!document.querySelector("h1")) {
    const title = document.createElement("h1");
    title.textContent = document.title.split(" - ")[0];
    document.querySelector("article")?.prepend(title);
  }
});
