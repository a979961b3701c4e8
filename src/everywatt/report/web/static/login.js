// The token goes out in a header, never in an address: addresses are kept in histories and logs.
"use strict";

(function () {
  const form = document.getElementById("login"), field = document.getElementById("token"), answer = document.getElementById("answer");

  async function show(token) {
    answer.textContent = "";
    let said = "The server does not respond.";
    try {
      const response = await fetch("/api/login", { headers: { Authorization: "Bearer " + token }, cache: "no-store" });
      if (response.ok) {
        location.replace("/");
        return;
      }
      said = (await response.json()).error;
    } catch { /* said already */ }
    answer.textContent = said;
    field.select();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show(field.value.trim());
  });

  // A link with #token=… : what is behind the # stays in the browser.
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    history.replaceState(null, "", "/login");
    show(given);
  }
})();
