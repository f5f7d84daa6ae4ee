"""What tokens cost: power, price and hardware over what was served. Pure but for reading the power of a host."""
