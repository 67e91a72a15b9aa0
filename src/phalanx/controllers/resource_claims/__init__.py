"""Claims on devices: made from templates, reserved for whoever runs with them, given back."""
