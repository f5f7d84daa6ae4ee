"""Messages between the processes of one instance: length-prefixed msgpack over socket pairs; EOF is the death signal."""
