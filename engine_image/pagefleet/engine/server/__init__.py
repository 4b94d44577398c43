"""The API process: OpenAI's HTTP surface on the public port, probes and capacity on the admin port."""
