"""Derive the axes of what layers return: `tracking` runs beside a model, `rules` say how axes pass through each operator."""
