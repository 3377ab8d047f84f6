// Copies curl lines, and searches operations. The page works without it.

for (const box of document.querySelectorAll(".curl")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const text = box.querySelector("code").textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      // Not a secure page: select it, so that the keyboard can copy it.
      getSelection().selectAllChildren(box.querySelector("code"));
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  box.append(button);
}

const search = document.getElementById("search");
search.hidden = false;
search.addEventListener("input", () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const article of document.querySelectorAll("article")) {
    const shown = words.every((word) => article.dataset.search.includes(word));
    article.hidden = !shown;
    const link = document.querySelector(`nav a[href="#${article.id}"]`);
    link.parentElement.hidden = !shown;
  }
  for (const section of document.querySelectorAll("main section")) {
    const articles = [...section.querySelectorAll("article")];
    section.hidden = words.length > 0 && articles.every((article) => article.hidden);
    const heading = document.querySelector(`nav h3 a[href="#${section.id}"]`);
    heading.parentElement.hidden = section.hidden;
  }
  document.documentElement.scrollTop = 0;
});
