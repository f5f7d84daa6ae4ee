"""Messages between the processes of an instance: length-prefixed msgpack on socket pairs; EOF means death."""
