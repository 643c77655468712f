"""Other people's tools through our corridor, and our tools for other people's clients.

Know nothing of the MCP library, so that they can be imported anywhere:

catalog.py      which servers there are: the user's file, never the workspace's
definitions.py  one raw tool definition → a ToolDef, or the reason why not
pins.py         what was seen first, and how what is offered now differs
wire.py         strict JSON-RPC text in; one bad tool never takes the others down

Speak the protocol (the optional extra ``handrail[mcp]``):

launch.py       starts a stdio server: in a cell, or without walls where the catalog says so
transport.py    pipes and HTTP as the library wants them, with wire.py in between; pipes.py reads and writes lines
direct.py       plain calls over a server's pipes, without the library
results.py      what a server answered → a ToolOutcome
client.py       one connection to one server, its tools as a Plugin
approvals.py    asking a person through the client that called us
server.py       our registry and executor as an MCP server; http.py guards its HTTP door
shortcut.py     plain calls of a stdio client, without the library
proxy.py        one server behind the corridor, under its own names
"""
