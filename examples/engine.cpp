// A small inference engine: it loads three shards by their index, multiplies, saves over the mapped files, reloads, and
// releases everything.

#include <safealign.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

using Vector = std::vector<float>;

constexpr std::size_t width = 64;
constexpr std::size_t matrix_bytes = width * width * sizeof(float);
constexpr const char* directory = "engine-model";
constexpr const char* index_path = "engine-model/model.safetensors.index.json";

/// The layers of a model whose matrices are multiples of the identity.
safealign::ShardedReport save(const std::vector<float>& scales) {
    std::vector<Vector> matrices;
    std::vector<safealign::Tensor> tensors;
    matrices.reserve(scales.size());
    for (const float scale : scales) {
        Vector& matrix = matrices.emplace_back(width * width, 0.0f);
        for (std::size_t at = 0; at < width; ++at) {
            matrix[at * width + at] = scale;
        }
        const std::string name = "layers." + std::to_string(tensors.size()) + ".weight";
        tensors.push_back({name, safealign::Dtype::F32, {width, width}, safealign::bytes_of(matrix)});
    }
    safealign::ShardedOptions options;
    options.replace = true;
    // One matrix for each shard.
    return safealign::write_sharded(directory, "model", matrix_bytes, tensors, {{"format", "pt"}}, options)
        .value_or_throw();
}

/// The mapped matrices of a model, in the order of the layers. They keep their files alive.
class Model {
public:
    explicit Model(const safealign::Bundle& bundle) {
        for (std::size_t layer = 0; layer < bundle.size(); ++layer) {
            const std::string name = "layers." + std::to_string(layer) + ".weight";
            layers_.push_back(bundle.map(name).value_or_throw());
        }
    }

    [[nodiscard]] Vector run(Vector input) const {
        for (const safealign::View& layer : layers_) {
            const auto matrix = layer.as<float>().value_or_throw();  // the file's own pages
            Vector output(width, 0.0f);
            for (std::size_t row = 0; row < width; ++row) {
                for (std::size_t column = 0; column < width; ++column) {
                    output[row] += matrix[row * width + column] * input[column];
                }
            }
            input = std::move(output);
        }
        return input;
    }

    /// Saves its own matrices, which are mapped from the files that the call replaces.
    void save_over() const {
        std::vector<safealign::Tensor> tensors;
        for (const safealign::View& layer : layers_) {
            const std::string name = "layers." + std::to_string(tensors.size()) + ".weight";
            tensors.push_back({name, layer.dtype(), {layer.shape().begin(), layer.shape().end()}, layer.bytes()});
        }
        safealign::ShardedOptions options;
        options.replace = true;
        (void)safealign::write_sharded(directory, "model", matrix_bytes, tensors, {}, options).value_or_throw();
    }

private:
    std::vector<safealign::View> layers_;
};

bool check(bool holds, const char* what) {
    std::printf("%s: %s\n", what, holds ? "ok" : "FAILED");
    return holds;
}

/// Whether this process still maps a file of the model.
bool is_mapped() {
    std::ifstream maps("/proc/self/smaps");
    for (std::string line; std::getline(maps, line);) {
        if (line.find(directory) != std::string::npos) {
            return true;
        }
    }
    return false;
}

bool run() {
    fs::remove_all(directory);
    fs::create_directory(directory);
    bool good = check(save({2, 3, 4}).shards == 3, "three shards are written");

    const safealign::BundleSlot slot =
        safealign::BundleSlot::make(safealign::Bundle::open(index_path).value_or_throw()).value_or_throw();
    const Vector ones(width, 1.0f);
    {
        const safealign::Bundle bundle = slot.get().value_or_throw();
        const Model model(bundle);
        good &= check(model.run(ones) == Vector(width, 24.0f), "the model multiplies by 24");
        good &= check(bundle.stats().tensors_copied == 0 && is_mapped(), "every tensor is mapped, none is copied");

        model.save_over();
        good &= check(model.run(ones) == Vector(width, 24.0f), "saved over, the mapped model is as it was");
        (void)save({2, 3, 5});
        good &= check(!bundle.is_current().value_or_throw(), "the model on disk is another one now");
        slot.set(safealign::Bundle::open(index_path).value_or_throw()).value_or_throw();
        good &= check(model.run(ones) == Vector(width, 24.0f), "the old model still works");
    }
    const Model reloaded(slot.get().value_or_throw());
    good &= check(reloaded.run(ones) == Vector(width, 30.0f), "the new model multiplies by 30");
    return good;
}

}  // namespace

int main() {
    const bool good = run();
#if defined(__linux__)
    return check(!is_mapped(), "nothing is left mapped") && good ? 0 : 1;
#else
    return good ? 0 : 1;
#endif
}
