"""The configuration: the models of passerelle.yaml, its sources, and the values that other packages use."""
