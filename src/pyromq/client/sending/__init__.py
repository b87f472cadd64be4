"""The parts of sending: where a message goes, in which form, and what is known of it afterwards."""
