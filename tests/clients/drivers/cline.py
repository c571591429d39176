# /// script
# [tool.client]
# name = "Cline (CLI)"
# formats = ["chat"]
# tool = { calls = "run_commands", arguments = { commands = ["echo seen {}"] } }
#
# [tool.client.npm]
# cline = "3.0.65"
#
# [tool.client.lacks]
# whole = "it always streams"
# id = "it shows none"
# ///
