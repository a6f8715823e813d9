"""Which consumer gets which message: consumers, and a dispatcher for each type of subscription."""
