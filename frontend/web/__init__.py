"""The App: what people see in a browser, rendered on the server from the same services as the API and the commands."""
