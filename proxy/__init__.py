"""The proxy: the asyncio process between agent and backend. Never imports torch."""
