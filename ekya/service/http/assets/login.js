// Logs in with the token behind `#token=` of a link: browsers send that part to no server, and keep it over redirects.
function logIn() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  history.replaceState(null, "", location.pathname); // out of the address bar, and of the history
  document.querySelector("#token").value = token;
  document.querySelector("form").submit();
}
addEventListener("hashchange", logIn);
logIn();
