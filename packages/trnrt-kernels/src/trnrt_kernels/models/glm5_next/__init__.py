"""The GLM-5.3-Flash architecture (`glm5_next`): config, weights and step segments."""
