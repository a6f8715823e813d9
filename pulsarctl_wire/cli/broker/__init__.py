"""The verb `broker`: an embedded broker (`pulsarctl_wire/broker`)."""
