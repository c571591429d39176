"""`GET /openapi.json`: the OpenAPI 3.1 document of all that other programs may use.

`requests`, `responses` and their like are the shapes of bodies, which `proxy.web.route_table` puts to its routes;
`document` makes the document of that table.
"""
